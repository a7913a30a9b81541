//! Declaration of events.

/// Declares an event: a struct, and the statements that write its log line and update its metrics. In them, the fields
/// are variables. Fields are as visible as the struct.
///
/// ```
/// use guildhall_actors::telemetry::{counter, emit, event, metrics};
/// use tracing::info;
///
/// metrics! {
///     Gate {
///         /// Resets of breakers.
///         RESETS = counter "doc_resets_total" [origin];
///     }
/// }
///
/// event! {
///     /// A breaker was reset.
///     struct BreakerReset<'a> { key: &'a str, origin: &'static str }
///     info!(key, origin, "breaker reset");
///     counter!(RESETS, "origin" => origin).increment(1);
/// }
///
/// emit(BreakerReset { key: "discord", origin: "api" });
/// ```
#[macro_export]
macro_rules! event {
    ($(#[$meta:meta])* $vis:vis struct $name:ident; $($emission:tt)+) => {
        $(#[$meta])*
        #[must_use]
        $vis struct $name;

        impl $crate::telemetry::InternalEvent for $name {
            fn emit(self) {
                $($emission)+
            }
        }
    };
    (
        $(#[$meta:meta])* $vis:vis struct $name:ident $(<$life:lifetime>)? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty),+ $(,)?
        }
        $($emission:tt)+
    ) => {
        $(#[$meta])*
        #[must_use]
        $vis struct $name $(<$life>)? {
            $($(#[$field_meta])* $vis $field: $type),+
        }

        impl $(<$life>)? $crate::telemetry::InternalEvent for $name $(<$life>)? {
            fn emit(self) {
                let Self { $($field),+ } = self;
                $($emission)+
            }
        }
    };
}
