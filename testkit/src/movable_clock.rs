//! A wall clock that a test can move, for the processes that it starts with it.

use std::process::Command;

use tempfile::TempDir;

/// Movable wall clock for child processes.
pub struct MovableClock {
    folder: TempDir,
}

impl MovableClock {
    pub fn compile() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Self { folder };
        clock.set_offset(0, 0);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock.c");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o", &clock.path("clock.so"), source])
            .status()
            .unwrap_or_else(|error| panic!("cannot run cc ({error}); apt-get install gcc libc6-dev"));
        assert!(status.success());
        clock
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Environment variables that make a process use this clock.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [("LD_PRELOAD", self.path("clock.so")), ("CLOCK_OFFSET", self.path("offset"))]
    }

    /// Sets the offset of the clock from the real time.
    pub fn set_offset(&self, seconds: i64, millis: i64) {
        let micros = (seconds * 1_000 + millis) * 1_000;
        // Written in place, because processes read the file through a memory mapping.
        let file = std::fs::File::options().write(true).create(true).truncate(false).open(self.path("offset")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &micros.to_ne_bytes(), 0).unwrap();
    }
}
