//! What becomes of one row of the table of keys: a flag, a variable and a field of the file, with its place when layers are
//! put together or read again. The table itself is in `keys`.

macro_rules! keys {
    (@key $field:ident $name:literal $env:literal $default:literal $live:literal $meaning:literal) => {
        Key { field: stringify!($field), name: $name, env: $env, default: $default, live: $live, meaning: $meaning }
    };
    ($(
        $(#[$attribute:meta])*
        $field:ident {
            name: $name:literal,
            env: $env:literal,
            default: $default:literal,
            live: $live:literal,
            meaning: $meaning:literal $(,)?
        }
    )*) => {
        /// One layer of the configuration: what a file, or the command line and the environment, say. Unchecked.
        #[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Layer {
            $(
                #[doc = $meaning]
                $(#[$attribute])*
                #[arg(long, env = $env, help = concat!($meaning, " [default: \"", $default, "\"]"))]
                #[serde(rename = $name)]
                $field: Option<Given>,
            )*
        }

        /// Every key, with the value that won.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(super) struct Resolved {
            $(pub(super) $field: Value,)*
        }

        /// Every key, in the order in which they are listed everywhere.
        pub const KEYS: &[Key] = &[$(keys!(@key $field $name $env $default $live $meaning),)*];

        impl Layer {
            /// What this layer says, else the one below it, else the defaults.
            pub(super) fn resolve(self, below: Self) -> Resolved {
                Resolved {
                    $($field: Value::new(
                        keys!(@key $field $name $env $default $live $meaning),
                        self.$field.or(below.$field),
                    ),)*
                }
            }

            /// The values given, each with the name clap knows it by.
            fn each_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Given)> {
                [$((stringify!($field), self.$field.as_mut()),)*]
                    .into_iter()
                    .filter_map(|(field, given)| Some((field, given?)))
            }
        }

        impl Resolved {
            /// The new values of live keys, and these of all others.
            pub(super) fn reloaded(&self, new: Self) -> Self {
                Self { $($field: if $live { new.$field } else { self.$field.clone() },)* }
            }
        }
    };
}

pub(super) use keys;
