"""Discord's OpenAPI description: the operation of a route, and the schema of its responses."""

import copy
import json
import re
from datetime import datetime
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

RATE_HEADERS = (
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-RateLimit-Reset-After",
    "X-RateLimit-Bucket",
)

formats = FormatChecker(formats=())


@formats.checks("date-time", raises=ValueError)
def _date_time(value):
    return not isinstance(value, str) or ("T" in value and datetime.fromisoformat(value).tzinfo is not None)


@formats.checks("uri", raises=ValueError)
def _uri(value):
    return not isinstance(value, str) or bool(urlsplit(value).scheme)


@formats.checks("int32")
def _int32(value):
    return not isinstance(value, int) or -(2**31) <= value < 2**31


@formats.checks("snowflake")
def _snowflake(value):
    return not isinstance(value, str) or (value.isdecimal() and int(value) < 2**64)


def shape(path):
    """Returns a template without the names of its parameters, which differ between Discord's two documents."""
    return re.sub(r"\{[^}]*\}", "{}", path)


class Description:
    """The description at `path`, with a strict copy that allows only documented fields."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        self.paths = {shape(template): (template, item) for template, item in document["paths"].items()}
        self.document = document
        self.plain = _registry(document)
        self.strict = _registry(_closed(document))

    def operation(self, method, template):
        """Returns the operation for a route of the simulator, or `None` if Discord describes none."""
        found = self.paths.get(shape(template))
        if found is None or method.lower() not in found[1]:
            return None
        return Operation(self, found[0], method.lower(), found[1][method.lower()])

    def resolve(self, node):
        while "$ref" in node:
            target = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part.replace("~1", "/").replace("~0", "~")]
            node = target
        return node


class Operation:
    """One operation and its described responses."""

    def __init__(self, description, template, method, node):
        self.description = description
        self.template = template
        self.method = method
        self.node = node

    @property
    def takes_body(self):
        return "requestBody" in self.node

    def response(self, status):
        """Returns the described response with this status, exact or by class; `None` if there is none."""
        responses = self.node["responses"]
        for key in (str(status), f"{status // 100}XX"):
            if key in responses:
                return key, self.description.resolve(responses[key])
        return None

    def body_schema(self, key):
        """Returns a reference to the schema of the JSON body of the response `key`; `None` if it has no body."""
        node = self.node["responses"][key]
        pointer = f"/paths/{_escaped(self.template)}/{self.method}/responses/{key}"
        if "$ref" in node:
            pointer = node["$ref"].removeprefix("#")
            node = self.description.resolve(node)
        if "application/json" not in node.get("content", {}):
            return None
        return {"$ref": f"urn:openapi#{pointer}/content/{_escaped('application/json')}/schema"}

    def body_errors(self, key, body):
        """Returns the errors of a body, as (kind, path, message); undocumented fields only without other errors."""
        schema = self.body_schema(key)
        found = _errors(schema, body, self.description.plain)
        if found:
            return [("body", at, message) for at, message in found]
        return [("undocumented", at, message) for at, message in _errors(schema, body, self.description.strict)]

    def header_errors(self, key, headers):
        """Returns the errors of the described headers. A response may have all of them or none."""
        described = self.description.resolve(self.node["responses"][key]).get("headers", {})
        sent = [name for name in described if name.lower() in headers]
        found = []
        if sent and len(sent) < len(described):
            missing = sorted(set(described) - set(sent))
            found.append((",".join(missing), "missing, while other rate headers are there"))
        for name in sent:
            kind = self.description.resolve(described[name])["schema"]["type"]
            value = headers[name.lower()]
            pattern = {"integer": r"\d+", "number": r"\d+(\.\d+)?", "string": r"\S+"}[kind]
            if not re.fullmatch(pattern, value):
                found.append((name, f"{value!r} is not of type {kind!r}"))
        return found


def _registry(document):
    resource = Resource(contents=document, specification=DRAFT202012)
    return Registry().with_resource("urn:openapi", resource)


def _escaped(part):
    return part.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")


def _closed(document):
    """Returns a copy in which objects have only their documented fields."""
    document = copy.deepcopy(document)

    def close(node, inside_all_of):
        if isinstance(node, list):
            for item in node:
                close(item, inside_all_of)
            return
        if not isinstance(node, dict):
            return
        if "allOf" in node and node.get("type") == "object":
            node.setdefault("unevaluatedProperties", False)
        elif "properties" in node and "additionalProperties" not in node and not inside_all_of:
            # `unevaluated` rather than `additional`: a part of an `allOf` must not forbid fields of the other parts.
            node["unevaluatedProperties"] = False
        for key, child in node.items():
            close(child, key == "allOf")

    close(document["paths"], False)
    parts = _all_of_parts(document)
    for name, schema in document["components"]["schemas"].items():
        close(schema, name in parts)
    close(document["components"].get("responses", {}), False)
    return document


def _all_of_parts(document):
    """Returns the schemas that are parts of an `allOf`: if closed separately, they would refuse the other parts."""
    names = set()

    def look(node):
        if isinstance(node, list):
            for item in node:
                look(item)
        elif isinstance(node, dict):
            for part in node.get("allOf", []):
                if "$ref" in part:
                    names.add(part["$ref"].rsplit("/", 1)[-1])
            for child in node.values():
                look(child)

    look(document)
    return names


def _errors(schema, body, registry):
    validator = Draft202012Validator(schema, registry=registry, format_checker=formats)
    found = []
    for error in validator.iter_errors(body):
        found.extend(_leaves(error))
    return sorted(set(found))


def _leaves(error, at="$"):
    """Returns the useful errors: those inside the branch of a `oneOf` that is closest to matching."""
    at += "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)
    if error.validator == "unevaluatedProperties":
        return [(f"{at}.{field}", "not a documented field") for field in re.findall(r"'([^']*)'", error.message)]
    if not error.context:
        return [(at, _brief(error))]
    branches = {}
    for inner in error.context:
        branches.setdefault(inner.schema_path[0], []).append(inner)
    nearest = min(branches.values(), key=_distance)
    return [leaf for inner in nearest for leaf in _leaves(inner, at)]


def _distance(errors):
    """Returns the distance of a branch: largest for another kind of value, then for another `type` of object."""
    wrong_kind = any(error.validator == "type" and not error.path for error in errors)
    wrong_tag = any(error.validator in ("enum", "const") and list(error.path) == ["type"] for error in errors)
    return (wrong_kind, wrong_tag, -min(len(error.path) for error in errors), len(errors))


def _brief(error):
    message = error.message
    if error.validator in ("type", "format", "pattern", "enum", "const"):
        value = json.dumps(error.instance, ensure_ascii=False)
        value = value if len(value) <= 60 else value[:57] + "..."
        return f"{value} does not fit {error.validator} {json.dumps(error.validator_value)}"
    return message if len(message) <= 200 else message[:197] + "..."
