//! Enumerations whose values have stable names.

/// A value with a stable name.
pub trait Named: Copy {
    /// The name.
    fn stable_name(self) -> &'static str;
}

macro_rules! named {
    (
        $(#[$attribute:meta])*
        $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// Every value, in the order of declaration, which is that of reports.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// The stable name, as in reports, JSON and other outputs for machines.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }
        }

        impl $crate::model::named::Named for $name {
            fn stable_name(self) -> &'static str {
                self.name()
            }
        }
    };
}

pub(crate) use named;
