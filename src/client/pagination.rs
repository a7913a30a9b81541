//! Reads lists page by page.

use serde_json::{Map, Value};

use super::{ApiRequest, ApiResponse, Client, ClientError, request::with_query};

/// Maximum number of entries in one page of the daemon.
const MAX_PAGE_SIZE: usize = 500;

/// A list to read page by page.
#[derive(Clone, Debug)]
pub struct ListRequest<'a> {
    /// Path of the list.
    pub path: &'a str,
    /// Name of the list in the response.
    pub list: &'static str,
    /// Name of the query parameter for the next page.
    pub cursor: &'static str,
    /// Filters, as query parameters.
    pub filters: Vec<(&'a str, Option<String>)>,
    /// Maximum number of entries.
    pub max_entries: usize,
    /// Name of the feature in errors of daemons that do not support it.
    pub feature: Option<&'static str>,
}

/// The entries that were read.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// The entries.
    pub entries: Vec<Value>,
    /// Cursor of the next page, if there are more entries.
    pub next: Option<String>,
    /// Other fields of the last response.
    pub rest: Map<String, Value>,
}

impl ListPage {
    /// Returns all of it in the form of one response of the daemon.
    #[must_use]
    pub fn into_value(self, list: &str) -> Value {
        let mut value = self.rest;
        value.insert(list.to_owned(), self.entries.into());
        value.insert("next".to_owned(), self.next.into());
        value.into()
    }
}

impl Client {
    /// Reads a list up to its maximum number of entries.
    ///
    /// # Errors
    ///
    /// See [`Client::send`].
    pub async fn read_list(&self, pages: &ListRequest<'_>) -> Result<ListPage, ClientError> {
        let mut page = ListPage::default();
        while page.entries.len() < pages.max_entries {
            let before = page.next.take();
            let limit = (pages.max_entries - page.entries.len()).min(MAX_PAGE_SIZE);
            let mut given = pages.filters.clone();
            given.push(("limit", Some(limit.to_string())));
            given.push((pages.cursor, before.clone()));
            let mut api_request = ApiRequest::new(http::Method::GET, with_query(pages.path, &given));
            if let Some(feature) = pages.feature {
                api_request = api_request.with_feature(feature);
            }
            let ApiResponse { status, body, .. } = self.send(&api_request).await?;
            let not_ours = || ClientError::NotGuildhall { api_url: self.api_url().clone(), status: status.as_u16() };
            let Value::Object(mut body) = body else { return Err(not_ours()) };
            let Some(Value::Array(entries)) = body.remove(pages.list) else { return Err(not_ours()) };
            page.next = body.remove("next").and_then(|next| next.as_str().map(str::to_owned));
            page.rest = body;
            page.entries.extend(entries);
            // Avoids an endless loop if a daemon returns the same cursor again.
            if page.next.is_none() || page.next == before {
                break;
            }
        }
        Ok(page)
    }
}
