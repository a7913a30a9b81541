//! A large form of a caller whose calls are judged: its files pass as they arrive, everything else only once it was judged.
//!
//! ```text
//!  client ──▶ PacedBody ──▶ FormReader ──▶ files, judged parts ──▶ channel ──▶ UploadBody ──▶ Discord
//!                             └─ content ──▶ EffectCheck: refused ──▶ the body ends with an error
//! ```
//!
//! The end of the form is the last that is released, after its whole content was judged. A call that is refused before
//! that is one that Discord never received completely.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::answer::{BoxError, Delivery, OwnAnswer};
use super::authorize::EffectCheck;
use super::body::{LongBody, MAX_WHOLE, failed_upload, too_large_to_check};
use super::fair_pool::Share;
use super::form::{FormError, FormReader, Step};
use crate::net::{PaceError, PacedBody};

/// Number of pieces between the client and Discord.
const PIECES: usize = 2;

/// A form whose first part has arrived.
pub(super) struct CheckedUpload {
    reader: FormReader,
    rest: PacedBody<Incoming>,
    /// For what is withheld.
    memory: Option<Share>,
    /// What was released of the first part.
    released: VecDeque<Bytes>,
    length: SizeHint,
}

/// The body of the call to Discord.
pub(super) struct UploadBody {
    pieces: Receiver<Piece>,
    /// What is left, if the client has named its size.
    left: Option<u64>,
    has_begun: Arc<AtomicBool>,
    has_ended: bool,
}

/// Passes an upload on.
pub(super) struct UploadSender {
    upload: CheckedUpload,
    pieces: Sender<Piece>,
    has_begun: Arc<AtomicBool>,
}

enum Piece {
    Data(Bytes),
    End,
}

/// The upload was refused, or its client is gone.
#[derive(Debug, thiserror::Error)]
#[error("the upload was given up")]
struct GivenUp;

impl CheckedUpload {
    /// Reads the first part of a form. Only forms can be checked while they arrive.
    pub(super) fn new(headers: &HeaderMap, body: LongBody) -> Result<Self, OwnAnswer> {
        let mut reader = Self::reader(headers)?;
        let length = body.size_hint();
        let (first, memory, rest) = body.into_parts();
        reader.push(&first);
        Ok(Self { reader, rest, memory, released: VecDeque::new(), length })
    }

    /// A reader for the form, if it is one.
    pub(super) fn reader(headers: &HeaderMap) -> Result<FormReader, OwnAnswer> {
        FormReader::of(headers, MAX_WHOLE).map_err(|error| match error {
            FormError::Type => too_large_to_check(),
            error => unreadable(&error).closing(),
        })
    }

    /// Judges what is known before the call asks for its permit: its target, and the content of the first part. Returns
    /// the guild that it concerns, where known.
    pub(super) async fn judge_first(&mut self, check: &EffectCheck<'_>) -> Result<Option<u64>, OwnAnswer> {
        let mut guild = None;
        let mut is_judged = false;
        loop {
            match self.reader.next().map_err(|error| unreadable(&error))? {
                Step::Release(bytes) => self.released.push_back(bytes),
                Step::Judge => {
                    guild = self.judge(check).await?;
                    is_judged = true;
                }
                Step::More if is_judged => return Ok(guild),
                // The target is judged even if nothing else is known.
                Step::More => {
                    return check.judge(Some(self.reader.content().map_err(|error| unreadable(&error))?)).await;
                }
            }
        }
    }

    /// The body for Discord, and what fills it.
    pub(super) fn into_body(self) -> (UploadBody, UploadSender) {
        let (sender, pieces) = mpsc::channel(PIECES);
        let has_begun = Arc::<AtomicBool>::default();
        let left = self.length.exact();
        let body = UploadBody { pieces, left, has_begun: Arc::clone(&has_begun), has_ended: false };
        (body, UploadSender { upload: self, pieces: sender, has_begun })
    }

    async fn judge(&mut self, check: &EffectCheck<'_>) -> Result<Option<u64>, OwnAnswer> {
        let content = self.reader.content().map_err(|error| unreadable(&error))?;
        let guild = check.judge(Some(content)).await?;
        self.reader.judged();
        Ok(guild)
    }

    /// Reserves memory for what is withheld.
    fn reserve(&mut self) -> Result<(), OwnAnswer> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        memory.resize(self.reader.withheld()).map_err(|_| super::body::bodies_full())
    }
}

impl UploadSender {
    /// Passes the upload on to its end.
    ///
    /// # Errors
    ///
    /// The response to a call that is refused, or whose client is too slow or gone. Its body has ended with an error.
    pub(super) async fn pass(mut self, check: &EffectCheck<'_>) -> Result<(), OwnAnswer> {
        self.pass_all(check).await.map_err(|refused| {
            let delivery = if self.has_begun.load(Ordering::SeqCst) { Delivery::Sent } else { Delivery::NotSent };
            OwnAnswer { delivery, ..refused.closing() }
        })
    }

    async fn pass_all(&mut self, check: &EffectCheck<'_>) -> Result<(), OwnAnswer> {
        while let Some(bytes) = self.upload.released.pop_front() {
            if !self.send(Piece::Data(bytes)).await {
                return Ok(());
            }
        }
        loop {
            match self.upload.reader.next().map_err(|error| unreadable(&error))? {
                Step::Release(bytes) => {
                    if !self.send(Piece::Data(bytes)).await {
                        return Ok(());
                    }
                    self.upload.reserve()?;
                }
                Step::Judge => {
                    self.upload.judge(check).await?;
                }
                Step::More => {
                    let failure = self.upload.rest.failure();
                    match self.upload.rest.frame().await {
                        Some(Ok(frame)) => {
                            if let Ok(data) = frame.into_data() {
                                self.upload.reader.push(&data);
                                self.upload.reserve()?;
                            }
                        }
                        Some(Err(_)) => return Err(failed_upload(failure.get().unwrap_or(PaceError::Gone))),
                        None => {
                            self.upload.reader.finish().map_err(|error| unreadable(&error))?;
                            self.send(Piece::End).await;
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Returns `false` if nobody reads any more: the call has its response, or was not sent.
    async fn send(&self, piece: Piece) -> bool {
        self.pieces.send(piece).await.is_ok()
    }
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.has_begun.store(true, Ordering::SeqCst);
        if self.has_ended {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(self.pieces.poll_recv(cx)) {
            Some(Piece::Data(data)) => {
                if let Some(left) = &mut self.left {
                    *left = left.saturating_sub(data.len() as u64);
                }
                Some(Ok(Frame::data(data)))
            }
            Some(Piece::End) => {
                self.has_ended = true;
                None
            }
            None => Some(Err(GivenUp.into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

fn unreadable(error: &FormError) -> OwnAnswer {
    match error {
        FormError::TooLarge => too_large_to_check(),
        FormError::Encoded | FormError::Type | FormError::Json(_) | FormError::Multipart(_) => {
            OwnAnswer::bad_request("unreadable_body", error.to_string())
        }
    }
}
