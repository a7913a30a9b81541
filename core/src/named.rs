//! Enums whose variants have names.

/// Declares an enum without data, and the name of each variant: in the API, the store, metrics and logs.
///
/// ```
/// guildhall_core::named_enum! {
///     /// How urgent a call is.
///     #[derive(Clone, Copy, Debug, PartialEq, Eq)]
///     pub enum Urgency {
///         /// A user is waiting.
///         High = "high",
///         /// It can wait.
///         Low = "low",
///     }
/// }
///
/// assert_eq!(Urgency::ALL, [Urgency::High, Urgency::Low]);
/// assert_eq!(Urgency::High.name(), "high");
/// assert_eq!(Urgency::from_name("low"), Some(Urgency::Low));
/// ```
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$meta:meta])* $vis:vis enum $enum:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $name:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis enum $enum {
            $($(#[$variant_meta])* $variant),+
        }

        impl $enum {
            /// All variants, in the order of their declaration.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Name in the API, the store, metrics and logs.
            #[must_use]
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            /// The variant with this name.
            #[must_use]
            $vis fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}
