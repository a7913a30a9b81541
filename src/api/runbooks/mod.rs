//! `/docs/runbooks`: what to do about each alert. The pages are compiled into the program, so they fit its version, and
//! load nothing from other servers.

mod markdown;

use std::sync::LazyLock;

use super::static_file::{HTML, StaticFile};

/// Declares the runbooks: their names, which are those of the alerts, and their texts.
macro_rules! runbooks {
    ($($name:literal),+ $(,)?) => {
        /// Name and text of each runbook.
        const RUNBOOKS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../docs/runbooks/", $name, ".md")))),+];
    };
}

runbooks![
    "GuildhallBanBudget",
    "GuildhallBreakerOpen",
    "GuildhallBrokerDown",
    "GuildhallBrokerRejects",
    "GuildhallClockWrong",
    "GuildhallCrashLoop",
    "GuildhallDeadLetters",
    "GuildhallDown",
    "GuildhallErrors",
    "GuildhallEventsQueued",
    "GuildhallForwardSlow",
    "GuildhallGlobalRateLimit",
    "GuildhallHandlingSlow",
    "GuildhallInteractionsQueued",
    "GuildhallMemoryPerShard",
    "GuildhallNoEvents",
    "GuildhallOperationsWaiting",
    "GuildhallReconnects",
    "GuildhallRedisDown",
    "GuildhallSequenceLag",
    "GuildhallShardDown",
    "GuildhallStoreDown",
    "GuildhallWorkerIdle",
];

/// Path of the index; the runbooks are below it.
pub(crate) const PATH: &str = "/docs/runbooks";

const MARKDOWN: &str = "text/markdown; charset=utf-8";
const STYLE: &str = include_str!("runbooks.css");

/// The index, the pages, their texts as Markdown, and the style sheet.
static FILES: LazyLock<Vec<StaticFile>> = LazyLock::new(|| {
    let mut files = vec![
        StaticFile::new("/docs/runbooks.css", "text/css; charset=utf-8", STYLE),
        StaticFile::new(PATH, HTML, page("Runbooks", &index())),
    ];
    for (name, text) in RUNBOOKS {
        files.push(StaticFile::new(format!("{PATH}/{name}"), HTML, page(name, &markdown::to_html(text, PATH))));
        files.push(StaticFile::new(format!("{PATH}/{name}.md"), MARKDOWN, *text));
    }
    files
});

/// All files.
pub(crate) fn files() -> &'static [StaticFile] {
    &FILES
}

/// The list of all runbooks, each with its first sentence.
fn index() -> String {
    let mut list = String::from("# Runbooks\n\nWhat to do about each alert of `config/prometheus`.\n\n");
    for (name, text) in RUNBOOKS {
        list += &format!("- [{name}]({name}.md): {}\n", first_sentence(text));
    }
    markdown::to_html(&list, PATH)
}

/// The first sentence below the first section.
fn first_sentence(text: &str) -> String {
    let paragraph = text.split("\n\n").find(|part| !part.starts_with('#')).unwrap_or_default().replace('\n', " ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |end| end + 1);
    paragraph[..end].to_owned()
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title} - Guildhall</title>\n\
         <link rel=\"stylesheet\" href=\"/docs/runbooks.css\">\n</head>\n<body>\n\
         <nav><a href=\"{PATH}\">Runbooks</a> <a href=\"/docs\">API</a></nav>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_runbook_of_the_folder_is_compiled_in() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/runbooks");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = files.filter_map(|name| Some(name.strip_suffix(".md")?.to_owned())).collect();
        names.sort();
        assert_eq!(names, RUNBOOKS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn pages_load_nothing_from_elsewhere_and_link_to_served_pages() {
        let served: Vec<&str> = files().iter().map(StaticFile::path).collect();
        for file in files().iter().filter(|file| file.path().starts_with(PATH) && !file.path().ends_with(".md")) {
            let html = std::str::from_utf8(file.bytes()).unwrap();
            assert!(!html.contains("<script") && !html.contains("<img"), "{}", file.path());
            for link in html.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
                let is_served = served.contains(&link) || link == "/docs";
                assert!(is_served || link.starts_with("https://discordstatus.com"), "{}: {link}", file.path());
            }
            for left_over in ["**", "](", "\n- ", "```"] {
                assert!(!html.contains(left_over), "{}: {left_over:?} is not rendered", file.path());
            }
        }
    }

    #[test]
    fn index_lists_each_runbook_with_its_first_sentence() {
        let html = index();
        assert_eq!(html.matches("<li>").count(), RUNBOOKS.len());
        let entry =
            "<li><a href=\"/docs/runbooks/GuildhallShardDown\">GuildhallShardDown</a>: A shard has had no session";
        assert!(html.contains(entry), "{html}");
    }
}
