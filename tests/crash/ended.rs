//! Checks of a process that a part has ended.

use guildhall_actors::supervision::Part;
use tokio::time::timeout;

use crate::life::Life;

/// A timeout that only a defect reaches; no test waits for it.
const STUCK: std::time::Duration = std::time::Duration::from_secs(90);

/// The failpoint that makes a part panic after so many messages.
pub(crate) fn failpoint(part: Part, messages: u64) -> String {
    format!("panic:{}:{messages}", part.name())
}

/// Waits until a part has ended the process, with exit code 1 and one log line with the part and the cause.
pub(crate) async fn ended_by(life: &mut Life, part: Part) {
    let ended = timeout(STUCK, life.ends()).await;
    assert!(ended.is_ok(), "{} did not end the process\n{}", part.name(), life.last_words());
    let status = life.kill();
    assert_eq!(status.code(), Some(1), "{}: {status}\n{}", part.name(), life.last_words());
    let lines = life.lines_with("ending the process");
    assert_eq!(lines.len(), 1, "{}\n{}", part.name(), life.last_words());
    let cause = lines[0]["cause"].as_str().unwrap();
    assert_eq!(lines[0]["part"], part.name(), "{}", life.last_words());
    assert!(cause.contains("panicked at") && cause.contains("failpoint of"), "{cause}");
}
