//! The Unix socket of the REST proxy, for processes on this machine.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 4_096;

/// The socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens on it.
    #[error("egress.socket names {}, on which another process listens; stop it, or set another path", .0.display())]
    InUse(PathBuf),
    /// Something else has that name.
    #[error("egress.socket names {}, which exists and is no socket; remove it, or set another path", .0.display())]
    NoSocket(PathBuf),
    /// The system refuses it.
    #[error(
        "cannot create the socket {} (egress.socket): {source}; its directory must exist, this user must be able to write \
         there, and the path may have about 100 bytes", path.display()
    )]
    Refused {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A socket that only this user can connect to. It accepts nothing before [`Self::listen`].
#[derive(Debug)]
pub(crate) struct BoundSocket {
    socket: Socket,
    path: PathBuf,
}

/// Removes the file of the socket, when dropped, if it is still the same.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
    /// Keeps the number from being given to another file.
    #[cfg(target_os = "linux")]
    _pinned: std::os::fd::OwnedFd,
}

impl BoundSocket {
    /// Creates the socket. One that is left of a process that has ended is replaced.
    pub(crate) fn bind(path: &Path) -> Result<(Self, SocketFile), SocketError> {
        let refused = |source| SocketError::Refused { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
            Ok(_) => {
                match UnixStream::connect(path) {
                    Ok(_) => return Err(SocketError::InUse(path.to_owned())),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(error) => return Err(refused(error)),
                }
                fs::remove_file(path).map_err(refused)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(error)),
        }
        let create = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(path)?)?;
            // Before it listens: until then nobody can connect.
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
            let found = fs::symlink_metadata(path)?;
            let file = SocketFile {
                path: path.to_owned(),
                identity: (found.dev(), found.ino()),
                #[cfg(target_os = "linux")]
                _pinned: pin(path)?,
            };
            Ok((Self { socket, path: path.to_owned() }, file))
        };
        create().map_err(refused)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Starts to listen. Must be called within a runtime.
    pub(super) fn listen(self) -> io::Result<UnixListener> {
        self.socket.listen(BACKLOG)?;
        self.socket.set_nonblocking(true)?;
        UnixListener::from_std(std::os::unix::net::UnixListener::from(self.socket))
    }
}

/// Opens a file without reading it.
#[cfg(target_os = "linux")]
fn pin(path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::{Mode, OFlags};

    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_same = fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if is_same {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_is_for_this_user_only_and_is_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("egress.sock");
        let (bound, file) = BoundSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_err(), "nothing is accepted yet");
        let listener = bound.listen().unwrap();
        drop(UnixStream::connect(&path).unwrap());
        drop((listener, file));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn only_a_socket_that_nobody_uses_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("egress.sock");
        let first = BoundSocket::bind(&path).unwrap();
        let listener = first.0.listen().unwrap();
        assert!(matches!(BoundSocket::bind(&path), Err(SocketError::InUse(_))));
        drop(listener);
        let (_second, _file) = BoundSocket::bind(&path).unwrap();
        drop(first.1);
        assert!(path.exists(), "the file of the next process stays");
        let other = folder.path().join("file");
        fs::write(&other, "content").unwrap();
        assert!(matches!(BoundSocket::bind(&other), Err(SocketError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&other).unwrap(), "content");
    }
}
