//! Attachments of messages, and their files.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::World;
use super::message::Message;
use crate::id::Snowflake;

/// Path of the files, below the simulator's own URL.
pub(crate) const PATH: &str = "/attachments/";

/// Maximum number of attachments of a message.
pub(crate) const MAX_ATTACHMENTS: usize = 10;

/// Maximum length of a file name.
const MAX_FILENAME: usize = 100;

/// An attachment; its JSON is Discord's attachment object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) id: Snowflake,
    pub(crate) filename: String,
    pub(crate) size: usize,
    pub(crate) url: String,
    pub(crate) proxy_url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) title: Option<String>,
}

impl Attachment {
    fn set_url(&mut self, origin: &str, channel: Snowflake) {
        self.url = format!("{origin}{PATH}{channel}/{}/{}", self.id, self.filename);
        self.proxy_url.clone_from(&self.url);
    }
}

/// The file of an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredFile {
    pub(crate) channel: Snowflake,
    pub(crate) filename: String,
    pub(crate) content_type: Option<String>,
    #[serde(with = "super::wire::base64")]
    pub(crate) content: Bytes,
}

/// The files of all attachments, oldest first. Bounded: new files take the place of the oldest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<Snowflake, StoredFile>", into = "BTreeMap<Snowflake, StoredFile>")]
pub(crate) struct Files {
    files: BTreeMap<Snowflake, StoredFile>,
    bytes: usize,
}

impl From<BTreeMap<Snowflake, StoredFile>> for Files {
    fn from(files: BTreeMap<Snowflake, StoredFile>) -> Self {
        Self { bytes: files.values().map(|file| file.content.len()).sum(), files }
    }
}

impl From<Files> for BTreeMap<Snowflake, StoredFile> {
    fn from(files: Files) -> Self {
        files.files
    }
}

impl Files {
    pub(crate) fn get(&self, id: Snowflake) -> Option<&StoredFile> {
        self.files.get(&id)
    }

    fn insert(&mut self, id: Snowflake, file: StoredFile, max_bytes: usize) {
        self.bytes += file.content.len();
        self.files.insert(id, file);
        while self.bytes > max_bytes {
            let Some((_, oldest)) = self.files.pop_first() else { return };
            self.bytes -= oldest.content.len();
        }
    }

    fn remove(&mut self, id: Snowflake) {
        if let Some(file) = self.files.remove(&id) {
            self.bytes -= file.content.len();
        }
    }
}

/// A new attachment of a message.
#[derive(Clone, Debug)]
pub(crate) struct NewAttachment {
    pub(crate) filename: String,
    pub(crate) content_type: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) content: Bytes,
}

impl World {
    /// Stores the file of a new attachment.
    pub(crate) fn attach(&mut self, message: &mut Message, new: NewAttachment) {
        let NewAttachment { filename: given, content_type, description, content } = new;
        let filename = safe_filename(&given);
        let mut attachment = Attachment {
            id: self.mint.generate(message.timestamp),
            size: content.len(),
            url: String::new(),
            proxy_url: String::new(),
            content_type: content_type.clone(),
            description,
            title: (filename != given).then(|| stem(&given)),
            filename: filename.clone(),
        };
        attachment.set_url(&self.http_url, message.channel_id);
        let file = StoredFile { channel: message.channel_id, filename, content_type, content };
        self.files.insert(attachment.id, file, self.rules.max_attachment_bytes);
        message.attachments.push(attachment);
    }

    /// Removes the files of a deleted message.
    pub(super) fn remove_files(&mut self, message: &Message) {
        message.attachments.iter().for_each(|attachment| self.files.remove(attachment.id));
    }

    /// Removes the file of an attachment that an edit removed.
    pub(crate) fn remove_file(&mut self, attachment: Snowflake) {
        self.files.remove(attachment);
    }

    /// Sets the URL of this simulator, which the URLs of attachments start with.
    pub(crate) fn set_http_url(&mut self, url: &str) {
        url.clone_into(&mut self.http_url);
        for (channel, feed) in &mut self.feeds {
            for attachment in feed.messages.values_mut().flat_map(|message| &mut message.attachments) {
                attachment.set_url(url, *channel);
            }
        }
    }
}

/// The name without characters that a URL or a header would have to encode.
fn safe_filename(given: &str) -> String {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    let name: String = given.chars().take(MAX_FILENAME).map(|letter| if safe(letter) { letter } else { '_' }).collect();
    if name.trim_matches(['.', '_']).is_empty() { "unknown".to_owned() } else { name }
}

/// A file name without its extension.
fn stem(filename: &str) -> String {
    filename.rsplit_once('.').map_or(filename, |(stem, _)| stem).chars().take(1_024).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: usize) -> StoredFile {
        StoredFile {
            channel: Snowflake::new(1),
            filename: "a".into(),
            content_type: None,
            content: Bytes::from(vec![7; size]),
        }
    }

    #[test]
    fn new_files_take_the_place_of_the_oldest() {
        let mut files = Files::default();
        for id in 1..=4 {
            files.insert(Snowflake::new(id), file(40), 100);
        }
        let kept: Vec<u64> = files.files.keys().map(|id| id.get()).collect();
        assert_eq!((kept, files.bytes), (vec![3, 4], 80));
        files.insert(Snowflake::new(5), file(101), 100);
        assert_eq!((files.files.len(), files.bytes), (0, 0), "a file larger than the bound is not stored");
    }

    #[test]
    fn snapshot_restores_files_and_their_size() {
        let mut files = Files::default();
        files.insert(Snowflake::new(1), file(40), 100);
        let restored: Files = serde_json::from_value(serde_json::to_value(&files).unwrap()).unwrap();
        assert_eq!((restored.files, restored.bytes), (files.files, 40));
    }

    #[test]
    fn unsafe_file_names_are_replaced() {
        assert_eq!(safe_filename("über raum.png"), "_ber_raum.png");
        assert_eq!(safe_filename("../../etc/passwd"), ".._.._etc_passwd");
        assert_eq!(safe_filename(".."), "unknown");
    }
}
