//! The macro that declares settings: schema, typed structs and how they are read are one text.

use super::{schema::Item, values::Values};

/// Settings that belong together, as a typed struct.
pub(crate) trait Section: Sized {
    /// Their declarations, in the order in which they are displayed.
    const ITEMS: &[Item];

    /// Takes the struct out of validated values.
    fn read(values: &Values) -> Self;
}

/// Declares sections of settings, each as a struct, or as an `impl` for a struct of another crate, whose other fields get
/// their defaults. Each item ends with a semicolon:
///
/// ```text
/// /// The description: rustdoc, template and docs/configuration.md have this text.
/// #[reloadable]                                            if a reload applies the setting
/// pub field: Type = kind, default;                         a setting; without a default, it may have no value
/// pub field as "name": Type = kind, default;               a setting with another name than its field
/// let name: Type = kind, default;                          a setting without a field, for fields that are computed
/// pub field: Type => expression;                           a field that is computed from the settings above
/// pub field: Type => |values| expression;                  a field that is computed from all settings
/// pub field: Type;                                         a section in this place
/// use Type;                                                a section in this place, without a field
/// ```
///
/// The default is written as in a settings file. The kind's value is converted by `FromValue` to the type of the field.
macro_rules! settings {
    () => {};
    ($(#[$meta:meta])* $vis:vis struct $Type:ident $(in $section:literal)? { $($items:tt)* } $($next:tt)*) => {
        settings!(@next {$(#[$meta])* $vis struct} $Type values [$($section)?] {} {} {} {} $($items)*);
        settings!($($next)*);
    };
    (impl $Type:ident in $section:literal { $($items:tt)* } $($next:tt)*) => {
        settings!(@next {impl} $Type values [$section] {} {} {} {} $($items)*);
        settings!($($next)*);
    };

    // A setting with a field.
    (@next $head:tt $Type:ident $values:ident $section:tt $rows:tt $reads:tt $fields:tt $names:tt
        $(#[$attr:ident $(= $text:literal)?])*
        pub $field:ident $(as $name:literal)? : $ty:ty = $kind:expr $(, $default:tt)?; $($rest:tt)*
    ) => {
        settings!(@next $head $Type $values $section $rows $reads $fields $names
            $(#[$attr $(= $text)?])* let $field $(as $name)? : $ty = $kind $(, $default)?;
            $($(#[$attr = $text])?)* pub $field: $ty => $field; $($rest)*);
    };
    // A setting without a field.
    (@next $head:tt $Type:ident $values:ident [$section:literal]
        {$($rows:tt)*} {$($reads:tt)*} $fields:tt $names:tt
        $(#[$attr:ident $(= $text:literal)?])*
        let $field:ident $(as $name:literal)? : $ty:ty = $kind:expr $(, $default:tt)?; $($rest:tt)*
    ) => {
        settings!(@next $head $Type $values [$section]
            {$($rows)* settings!(@row [$($attr $(= $text)?),*] [$section $field $($name)?] $kind $(, $default)?),}
            {$($reads)* let $field: $ty = settings!(@read $values [$section $field $($name)?] $kind $(, $default)?);}
            $fields $names $($rest)*);
    };
    // A computed field.
    (@next $head:tt $Type:ident $values:ident $section:tt
        $rows:tt {$($reads:tt)*} {$($fields:tt)*} {$($names:tt)*}
        $(#[$meta:meta])* $vis:vis $field:ident : $ty:ty => |$all:ident| $value:expr; $($rest:tt)*
    ) => {
        settings!(@next $head $Type $values $section
            $rows {$($reads)* let $field: $ty = { let $all = $values; $value };}
            {$($fields)* $(#[$meta])* $vis $field: $ty,} {$($names)* $field,} $($rest)*);
    };
    (@next $head:tt $Type:ident $values:ident $section:tt
        $rows:tt {$($reads:tt)*} {$($fields:tt)*} {$($names:tt)*}
        $(#[$meta:meta])* $vis:vis $field:ident : $ty:ty => $value:expr; $($rest:tt)*
    ) => {
        settings!(@next $head $Type $values $section
            $rows {$($reads)* let $field: $ty = $value;}
            {$($fields)* $(#[$meta])* $vis $field: $ty,} {$($names)* $field,} $($rest)*);
    };
    // A section.
    (@next $head:tt $Type:ident $values:ident $section:tt
        {$($rows:tt)*} $reads:tt $fields:tt $names:tt
        use $ty:ty; $($rest:tt)*
    ) => {
        settings!(@next $head $Type $values $section
            {$($rows)* $crate::settings::schema::Item::Section(<$ty as $crate::settings::declare::Section>::ITEMS),}
            $reads $fields $names $($rest)*);
    };
    (@next $head:tt $Type:ident $values:ident $section:tt
        $rows:tt $reads:tt $fields:tt $names:tt
        $(#[$meta:meta])* pub $field:ident : $ty:ty; $($rest:tt)*
    ) => {
        settings!(@next $head $Type $values $section $rows $reads $fields $names
            use $ty;
            $(#[$meta])* pub $field: $ty => <$ty as $crate::settings::declare::Section>::read($values); $($rest)*);
    };

    // No more items.
    (@next {impl} $Type:ident $values:ident $section:tt
        $rows:tt $reads:tt $fields:tt {$($names:tt)*}
    ) => {
        settings!(@section $Type $values $rows $reads {$($names)* ..Self::default()});
    };
    (@next {$($head:tt)*} $Type:ident $values:ident $section:tt $rows:tt $reads:tt {$($fields:tt)*} $names:tt) => {
        $($head)* $Type { $($fields)* }

        settings!(@section $Type $values $rows $reads $names);
    };
    (@section $Type:ident $values:ident {$($rows:tt)*} {$($reads:tt)*} {$($names:tt)*}) => {
        impl $crate::settings::declare::Section for $Type {
            const ITEMS: &[$crate::settings::schema::Item] = &[$($rows)*];

            fn read($values: &$crate::settings::values::Values) -> Self {
                $($reads)*
                Self { $($names)* }
            }
        }
    };

    (@row [$($attr:ident $(= $text:literal)?),*] [$($path:tt)*] $kind:expr $(, $default:tt)?) => {
        $crate::settings::schema::Item::Setting($crate::settings::schema::Setting {
            path: settings!(@path $($path)*),
            kind: &$kind,
            default: settings!(@default $($default)?),
            attributes: &[$(settings!(@attribute $attr $($text)?)),*],
        })
    };
    (@read $values:ident [$($path:tt)*] $kind:expr) => {
        $values.get(settings!(@path $($path)*), &$kind).unwrap_or_default()
    };
    (@read $values:ident [$($path:tt)*] $kind:expr, $default:tt) => {
        $values.get(settings!(@path $($path)*), &$kind).expect("invariant: it has a default")
    };
    (@path $section:literal $field:ident) => { concat!($section, ".", stringify!($field)) };
    (@path $section:literal $field:ident $name:literal) => { concat!($section, ".", $name) };
    (@default) => { None };
    (@default $default:tt) => { Some(stringify!($default)) };
    (@attribute doc $text:literal) => { $crate::settings::schema::Attribute::Doc($text) };
    (@attribute reloadable) => { $crate::settings::schema::Attribute::Reloadable };
}
pub(crate) use settings;
