//! Webhooks against brains on real sockets, with every kind of response.

mod addresses;
mod fixture;
mod isolation;
mod request_metrics;
mod response_trust;
mod responses;
mod signatures;
mod tls;
