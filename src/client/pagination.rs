//! Lists that come in pages.

use serde_json::{Map, Value};

use super::{ApiRequest, ApiResponse, Client, ClientError, request::query};

/// The most entries that the daemon gives at once.
const PAGE_MOST: usize = 500;

/// A list to be read, page by page.
#[derive(Clone, Debug)]
pub struct ListRequest<'a> {
    /// Where it is.
    pub path: &'a str,
    /// The name of the list in the answer.
    pub list: &'static str,
    /// What a page after the first is asked for with.
    pub cursor: &'static str,
    /// Which entries.
    pub given: Vec<(&'a str, Option<String>)>,
    /// How many at most.
    pub most: usize,
    /// What it is, for a daemon that knows nothing of it.
    pub feature: Option<&'static str>,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// The entries.
    pub entries: Vec<Value>,
    /// Where it goes on, if there are more.
    pub next: Option<String>,
    /// What else the last answer said.
    pub rest: Map<String, Value>,
}

impl ListPage {
    /// All of it as one answer of the daemon's.
    #[must_use]
    pub fn into_value(self, list: &str) -> Value {
        let mut value = self.rest;
        value.insert(list.to_owned(), self.entries.into());
        value.insert("next".to_owned(), self.next.into());
        value.into()
    }
}

impl Client {
    /// Reads a list up to its bound.
    ///
    /// # Errors
    ///
    /// As [`Client::send`].
    pub async fn pages(&self, pages: &ListRequest<'_>) -> Result<ListPage, ClientError> {
        let mut page = ListPage::default();
        while page.entries.len() < pages.most {
            let before = page.next.take();
            let limit = (pages.most - page.entries.len()).min(PAGE_MOST);
            let mut given = pages.given.clone();
            given.push(("limit", Some(limit.to_string())));
            given.push((pages.cursor, before.clone()));
            let mut ask = ApiRequest::new(http::Method::GET, query(pages.path, &given));
            if let Some(feature) = pages.feature {
                ask = ask.about(feature);
            }
            let ApiResponse { status, body, .. } = self.send(&ask).await?;
            let not_ours = || ClientError::NotOurs { place: self.place().clone(), status: status.as_u16() };
            let Value::Object(mut body) = body else { return Err(not_ours()) };
            let Some(Value::Array(entries)) = body.remove(pages.list) else { return Err(not_ours()) };
            page.next = body.remove("next").and_then(|next| next.as_str().map(str::to_owned));
            page.rest = body;
            page.entries.extend(entries);
            // A daemon that gives the same place again would be asked for ever.
            if page.next.is_none() || page.next == before {
                break;
            }
        }
        Ok(page)
    }
}
