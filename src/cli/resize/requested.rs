//! `-c NAME` with the values that follow it, once for each container.
//!
//! Values belong to the container named last before them, or to all containers named in a row: `-c app --cpu-limit 1 -c
//! side -c proxy --memory-limit 64Mi`. With one container alone the order does not matter.

use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches};

use crate::model::{Bytes, MilliCpu, NamedRequirements, Requirements, Resource};

const CONTAINER: &str = "container";

/// The options with amounts, the resource of each, and their help.
const OPTIONS: [(&str, Resource, &str); 4] = [
    ("cpu-request", Resource::Cpu, "Reserved cpu, such as 250m"),
    ("cpu-limit", Resource::Cpu, "Most cpu it may use"),
    ("memory-request", Resource::Memory, "Reserved memory, such as 128Mi"),
    ("memory-limit", Resource::Memory, "Most memory it may use"),
];

/// The requested values of each container. An absent value stays as it is.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestedResources {
    pub(super) containers: Vec<NamedRequirements>,
}

impl Args for RequestedResources {
    fn augment_args(command: Command) -> Command {
        let container = Arg::new(CONTAINER)
            .short('c')
            .long(CONTAINER)
            .value_name("NAME")
            .help("The container's name; the values after it are for it. May be given again, with values of its own")
            .required(true)
            .action(ArgAction::Append)
            .value_parser(NonEmptyStringValueParser::new());
        let values = OPTIONS.map(|(name, resource, help)| {
            let value = Arg::new(name).long(name).help(help).action(ArgAction::Append);
            match resource {
                Resource::Cpu => value
                    .value_name("CPU")
                    .value_parser(|text: &str| text.parse().map(MilliCpu::get)),
                Resource::Memory => value
                    .value_name("MEMORY")
                    .value_parser(|text: &str| text.parse().map(Bytes::get)),
            }
        });
        let group = ArgGroup::new("values")
            .args(OPTIONS.map(|(name, ..)| name))
            .required(true)
            .multiple(true);
        command.arg(container).args(values).group(group)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RequestedResources {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given: Vec<_> = occurrences(matches, CONTAINER)
            .map(|(at, name)| (at, Given::Container(name)))
            .collect();
        if let [(at, _)] = given.as_mut_slice() {
            // With one container alone the order does not matter.
            *at = 0;
        }
        for (option, resource, _) in OPTIONS {
            let amounts = occurrences(matches, option);
            given.extend(amounts.map(|(at, amount)| (at, Given::Amount(option, resource, amount))));
        }
        given.sort_by_key(|(at, _)| *at);
        let given: Vec<Given> = given.into_iter().map(|(_, given)| given).collect();
        let containers = assign(&given).map_err(|message| clap::Error::raw(ErrorKind::ValueValidation, message))?;
        Ok(Self { containers })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A part of the command line: the name of a container, or an option with its resource and amount.
enum Given {
    Container(String),
    Amount(&'static str, Resource, u64),
}

/// The values of an option with their places on the command line.
fn occurrences<'a, T: Clone + Send + Sync + 'static>(
    matches: &'a ArgMatches,
    name: &str,
) -> impl Iterator<Item = (usize, T)> + use<'a, T> {
    let indices = matches.indices_of(name).into_iter().flatten();
    let values = matches.get_many::<T>(name).into_iter().flatten().cloned();
    indices.zip(values)
}

/// Assigns the values to the containers, both in the order of the command line. Containers in a row share values.
fn assign(given: &[Given]) -> Result<Vec<NamedRequirements>, String> {
    let mut containers: Vec<NamedRequirements> = Vec::new();
    let continues = |one: &Given, next: &Given| !matches!((one, next), (Given::Amount(..), Given::Container(_)));
    for row in given.chunk_by(continues) {
        let (mut names, mut resources) = (Vec::new(), Requirements::default());
        for one in row {
            match one {
                Given::Container(name) => names.push(name),
                Given::Amount(option, resource, amount) => {
                    let Some(name) = names.first() else {
                        return Err(format!("--{option} is for no container: put -c NAME before it"));
                    };
                    let list = match option.ends_with("request") {
                        true => &mut resources.requests,
                        false => &mut resources.limits,
                    };
                    if list.get(*resource).is_some() {
                        return Err(format!("--{option} is given twice for container {name}"));
                    }
                    list.set(*resource, Some(*amount));
                }
            }
        }
        check(&resources)?;
        for name in names {
            if containers.iter().any(|container| container.name == *name) {
                return Err(format!("-c {name} is given twice: name each container once"));
            }
            if resources == Requirements::default() {
                return Err(format!("-c {name} has no values: put them after it"));
            }
            containers.push(NamedRequirements::new(name, resources));
        }
    }
    Ok(containers)
}

/// Refuses a limit of zero, and a request above its limit.
fn check(Requirements { requests, limits }: &Requirements) -> Result<(), String> {
    let is_zero = |resource: &Resource| limits.get(*resource) == Some(0);
    if let Some(resource) = Resource::ALL.into_iter().find(is_zero) {
        return Err(format!("--{resource}-limit 0 is no limit: give an amount above it"));
    }
    if let Some((resource, [request, limit])) = requests.first_above(limits) {
        return Err(format!(
            "--{resource}-request {request} is above --{resource}-limit {limit}: lower the one or raise the other"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ResourceList;

    fn parse(line: &str) -> Result<Vec<(String, String)>, String> {
        let command = RequestedResources::augment_args(Command::new("resize").no_binary_name(true));
        let matches = command
            .try_get_matches_from(line.split(' '))
            .map_err(|error| error.to_string())?;
        let wanted = RequestedResources::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        let shown = |container: NamedRequirements| {
            let Requirements { requests, limits } = container.resources;
            let texts = Resource::ALL.map(|resource| {
                let text = |list: &ResourceList| list.text(resource).unwrap_or_default();
                format!("{}/{}", text(&requests), text(&limits))
            });
            (container.name, texts.join(" "))
        };
        Ok(wanted.containers.into_iter().map(shown).collect())
    }

    fn parsed(line: &str) -> Vec<(String, String)> {
        parse(line).unwrap()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, values): &(&str, &str)| ((*name).to_owned(), (*values).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn values_follow_the_names_of_containers() {
        assert_eq!(
            parsed("-c app --cpu-limit 1 --memory-limit 1Gi -c side --cpu-request 50m"),
            pairs(&[("app", "/1 /1Gi"), ("side", "50m/ /")])
        );
        assert_eq!(
            parsed("-c a -c b --cpu-limit 1 -c d --cpu-limit 2"),
            pairs(&[("a", "/1 /"), ("b", "/1 /"), ("d", "/2 /")])
        );
    }

    #[test]
    fn with_one_container_the_order_does_not_matter() {
        for line in ["-c app --cpu-limit 1", "--cpu-limit=1 --container app"] {
            assert_eq!(parsed(line), pairs(&[("app", "/1 /")]), "{line}");
        }
    }

    #[test]
    fn what_could_be_misunderstood_is_refused() {
        for (line, word) in [
            ("--cpu-limit 1 -c a -c b", "--cpu-limit is for no container"),
            ("-c a --cpu-limit 1 -c b", "-c b has no values"),
            ("-c a --cpu-limit 1 -c a --cpu-limit 2", "-c a is given twice"),
            (
                "-c a --cpu-limit 1 --cpu-limit 2",
                "--cpu-limit is given twice for container a",
            ),
            ("-c a --memory-limit 0", "--memory-limit 0 is no limit"),
            (
                "-c a --cpu-request 2 --cpu-limit 1",
                "--cpu-request 2 is above --cpu-limit 1",
            ),
            ("-c a", "--cpu-request"),
            ("--cpu-limit 1", "--container"),
            ("-c a --cpu-limit 1x", "--cpu-limit"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
