//! Checks of a process that a part has ended.

use guildhall_actors::supervision::Part;
use tokio::time::timeout;

use super::daemon_process::DaemonProcess;

/// A timeout that only a defect reaches; no test waits for it.
const TEST_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(90);

/// The failpoint that makes a part panic after so many messages.
pub fn failpoint(part: Part, messages: u64) -> String {
    format!("panic:{}:{messages}", part.name())
}

/// Waits until a part has ended the process, with exit code 1 and one log line with the part and the cause.
pub async fn assert_ended_by(daemon: &mut DaemonProcess, part: Part) {
    let exited = timeout(TEST_TIMEOUT, daemon.wait_for_exit()).await;
    assert!(exited.is_ok(), "{} did not end the process\n{}", part.name(), daemon.log_tail());
    let status = daemon.kill();
    assert_eq!(status.code(), Some(1), "{}: {status}\n{}", part.name(), daemon.log_tail());
    let lines = daemon.log_lines_with("ending the process");
    assert_eq!(lines.len(), 1, "{}\n{}", part.name(), daemon.log_tail());
    let cause = lines[0]["cause"].as_str().unwrap();
    assert_eq!(lines[0]["part"], part.name(), "{}", daemon.log_tail());
    assert!(cause.contains("panicked at") && cause.contains("failpoint of"), "{cause}");
}
