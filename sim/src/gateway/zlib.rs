//! `compress=zlib-stream`: one zlib stream per connection, flushed after every message.

use flate2::{Compress, Compression, FlushCompress};

/// The sending half of a zlib stream.
#[derive(Debug)]
pub(crate) struct Deflater(Compress);

impl Deflater {
    pub(crate) fn new() -> Self {
        Self(Compress::new(Compression::fast(), true))
    }

    /// One message as the next bytes of the stream, which end with the sync marker `00 00 ff ff`.
    pub(crate) fn message(&mut self, mut text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() / 3 + 64);
        loop {
            let before = self.0.total_in();
            self.0
                .compress_vec(text, &mut out, FlushCompress::Sync)
                .expect("invariant: the only error is a call after the end of the stream, which is never ended");
            let taken = usize::try_from(self.0.total_in() - before).expect(
                "invariant: the compressor consumes at most its \
                    input",
            );
            text = &text[taken..];
            // Unused capacity means that the flush is complete.
            if text.is_empty() && out.len() < out.capacity() {
                return out;
            }
            out.reserve(out.capacity().max(64));
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Decompress, FlushDecompress};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn compressed_messages_decompress_one_by_one(messages in proptest::collection::vec(".{1,500}", 1..12)) {
            let mut deflater = Deflater::new();
            let mut inflate = Decompress::new(true);
            for message in &messages {
                let bytes = deflater.message(message.as_bytes());
                prop_assert!(bytes.ends_with(&[0, 0, 0xff, 0xff]));
                let mut out = Vec::with_capacity(message.len() + 64);
                inflate.decompress_vec(&bytes, &mut out, FlushDecompress::Sync).unwrap();
                prop_assert_eq!(&out, message.as_bytes());
            }
        }
    }
}
