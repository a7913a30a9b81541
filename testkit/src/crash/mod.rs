//! A daemon that is killed under load, the load, and the check of its effects by the simulator's score.

pub mod checker;
pub mod client;
pub mod daemon_process;
pub mod fixture;
pub mod generator;
pub mod killed_parts;
pub mod part_exit;
pub mod test_operation;
