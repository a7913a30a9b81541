//! WebSocket frames on a plain connection after the handshake. Frames of a server are not masked, frames of a client
//! are.

use std::io::{self, Read};

/// Maximum length of a client's frame.
const MAX_FRAME_LENGTH: u64 = 64 * 1024;

/// A server's close frame with code 4000.
pub(super) const CLOSE: [u8; 4] = [0x88, 2, 0x0f, 0xa0];

/// Appends a text frame of a server, given its parts.
pub(super) fn append_text(parts: &[&[u8]], to: &mut Vec<u8>) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    to.push(0x81);
    match (u8::try_from(len), u16::try_from(len)) {
        (Ok(short), _) if short < 126 => to.push(short),
        (_, Ok(middle)) => {
            to.push(126);
            to.extend(middle.to_be_bytes());
        }
        (_, Err(_)) => {
            to.push(127);
            to.extend((len as u64).to_be_bytes());
        }
    }
    for part in parts {
        to.extend_from_slice(part);
    }
}

/// A frame of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientFrame {
    Text(Vec<u8>),
    /// The client closes the connection.
    Close,
    Other,
}

/// Reads the next frame of a client. A client sends each message as one frame.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<ClientFrame> {
    let mut head = [0; 2];
    from.read_exact(&mut head)?;
    let len = match head[1] & 0x7f {
        126 => {
            let mut len = [0; 2];
            from.read_exact(&mut len)?;
            u64::from(u16::from_be_bytes(len))
        }
        127 => {
            let mut len = [0; 8];
            from.read_exact(&mut len)?;
            u64::from_be_bytes(len)
        }
        short => u64::from(short),
    };
    if head[1] & 0x80 == 0 || len > MAX_FRAME_LENGTH {
        return Err(io::Error::other("a client's frame is not masked or too long"));
    }
    let mut mask = [0; 4];
    from.read_exact(&mut mask)?;
    let mut payload = Vec::new();
    from.take(len).read_to_end(&mut payload)?;
    for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    Ok(match head[0] & 0x0f {
        1 => ClientFrame::Text(payload),
        8 => ClientFrame::Close,
        _ => ClientFrame::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_frame_encodes_its_length() {
        for (len, head) in
            [(5, vec![0x81, 5]), (300, vec![0x81, 126, 1, 44]), (70_000, vec![0x81, 127, 0, 0, 0, 0, 0, 1, 17, 112])]
        {
            let mut written = Vec::new();
            append_text(&[b"ab", &vec![b'x'; len - 2]], &mut written);
            assert_eq!(written[..head.len()], head);
            assert_eq!(written.len(), head.len() + len);
        }
    }

    #[test]
    fn masked_client_frame_is_read() {
        let mut frame = vec![0x81, 0x82, 1, 2, 3, 4, b'h' ^ 1, b'i' ^ 2, 0x88, 0x80, 0, 0, 0, 0];
        let mut from = frame.as_slice();
        assert_eq!(read_frame(&mut from).ok(), Some(ClientFrame::Text(b"hi".to_vec())));
        assert_eq!(read_frame(&mut from).ok(), Some(ClientFrame::Close));
        assert!(read_frame(&mut from).is_err());
        frame[1] = 2;
        assert!(read_frame(&mut frame.as_slice()).is_err());
    }
}
