#!/usr/bin/env python3
"""Consumes events from RabbitMQ: checks their order, skips duplicates, gives up on what fails.

    pip install pika
    python3 consumer.py amqp://guest:guest@127.0.0.1:5672/%2F            all partitions, shared with other consumers
    python3 consumer.py amqp://guest:guest@127.0.0.1:5672/%2F 'member.#'  a queue of its own, for these events

It prints one JSON line for each event. A real consumer stores the last position of each stream in the same transaction as the
effect of the event; this one has it in memory.
"""

import json
import sys

import pika

EXCHANGE = "guildhall.events"
QUEUES = [f"guildhall.events.p{number:02}" for number in range(32)]
ATTEMPTS = 3


class Streams:
    """The last position of each stream: the events of one guild."""

    def __init__(self):
        self.last = {}

    def check(self, headers):
        """Returns "new", "duplicate" or "gap" for an event, and remembers its position."""
        stream = headers.get("guildhall-stream")
        if stream is None:  # Interactions have no order.
            return "new"
        here = (headers["guildhall-epoch"], headers["guildhall-counter"])
        last = self.last.get(stream)
        if last is not None and here <= last:
            return "duplicate"
        self.last[stream] = here
        if last is None:  # Events before it were consumed by an earlier process.
            return "new"
        expected = last[1] + 1 if here[0] == last[0] else 1
        return "new" if here[1] == expected else "gap"


def handle(event):
    """What the bot does with an event."""
    print(json.dumps({"event": event["event_type"], "id": event["event_id"], "guild": event.get("guild_id")}), flush=True)


def main(url, pattern=None):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=10)
    streams = Streams()

    def on_message(channel, method, properties, body):
        headers = properties.headers or {}
        found = streams.check(headers)
        if found == "gap":
            print(f"events are missing before {properties.message_id} of {headers['guildhall-stream']}", file=sys.stderr)
        if found == "duplicate":
            channel.basic_ack(method.delivery_tag)
            return
        for attempt in range(1, ATTEMPTS + 1):
            try:
                handle(json.loads(body))
            except Exception as error:  # It is retried in place, so that later events of the guild wait.
                print(f"attempt {attempt} of {properties.message_id} failed: {error}", file=sys.stderr)
            else:
                channel.basic_ack(method.delivery_tag)
                return
        # Into the queue of dead letters: guildhall broker dlq list
        channel.basic_reject(method.delivery_tag, requeue=False)

    if pattern is None:
        queues = QUEUES
    else:
        queues = [channel.queue_declare("", exclusive=True).method.queue]
        channel.queue_bind(queues[0], EXCHANGE, pattern)
    for queue in queues:
        channel.basic_consume(queue, on_message)
    print(json.dumps({"ready": queues[0]}), flush=True)
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        connection.close()


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: consumer.py AMQP_URL [PATTERN]")
    main(*sys.argv[1:])
