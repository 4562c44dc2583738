//! `-c NAME` with the values that follow it, as often as there are containers.
//!
//! Values belong to the container named last before them, or to all that were named in a row: `-c app --cpu-limit 1 -c
//! side -c proxy --memory-limit 64Mi`. With one container alone the order does not matter.

use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches};

use crate::model::{Bytes, MilliCpu, NamedRequirements, Requirements, Resource};

const CONTAINER: &str = "container";
const VALUES: [(&str, &str, &str); 4] = [
    ("cpu-request", "CPU", "Reserved cpu, such as 250m"),
    ("cpu-limit", "CPU", "Most cpu it may use"),
    ("memory-request", "MEMORY", "Reserved memory, such as 128Mi"),
    ("memory-limit", "MEMORY", "Most memory it may use"),
];

/// What each container is to have; what is absent stays as it is.
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
        let values = VALUES.map(|(name, unit, help)| {
            let value = Arg::new(name)
                .long(name)
                .value_name(unit)
                .help(help)
                .action(ArgAction::Append);
            if unit == "CPU" {
                value.value_parser(|text: &str| text.parse::<MilliCpu>().map(MilliCpu::get))
            } else {
                value.value_parser(|text: &str| text.parse::<Bytes>().map(Bytes::get))
            }
        });
        let group = ArgGroup::new("values")
            .args(VALUES.map(|(name, ..)| name))
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
        let mut given: Vec<(usize, Given)> = occurrences::<String>(matches, CONTAINER)
            .map(|(index, name)| (index, Given::Container(name)))
            .collect();
        for (name, ..) in VALUES {
            let values = occurrences::<u64>(matches, name);
            given.extend(values.map(|(index, amount)| (index, Given::Value(name, amount))));
        }
        given.sort_by_key(|(index, _)| *index);
        assign(given.into_iter().map(|(_, given)| given).collect())
            .and_then(check)
            .map_err(|message| clap::Error::raw(ErrorKind::ValueValidation, message))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// One option of the command line.
#[derive(Debug, Clone, PartialEq)]
enum Given {
    Container(String),
    Value(&'static str, u64),
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

/// Assigns the values to the containers.
fn assign(mut given: Vec<Given>) -> Result<RequestedResources, String> {
    let named = |given: &Given| matches!(given, Given::Container(_));
    if given.iter().filter(|given| named(given)).count() == 1 {
        given.sort_by_key(|given| !named(given));
    }
    let mut containers: Vec<NamedRequirements> = Vec::new();
    // Where the containers begin that the next value is for, and whether they have had one.
    let (mut from, mut valued) = (0, true);
    for given in given {
        match given {
            Given::Container(name) => {
                if containers.iter().any(|container| container.name == name) {
                    return Err(format!("-c {name} is given twice: name each container once"));
                }
                if valued {
                    (from, valued) = (containers.len(), false);
                }
                let resources = Requirements::default();
                containers.push(NamedRequirements { name, resources });
            }
            Given::Value(option, amount) => {
                if containers.is_empty() {
                    return Err(format!("--{option} is for no container: put -c NAME before it"));
                }
                valued = true;
                for container in &mut containers[from..] {
                    set(container, option, amount)?;
                }
            }
        }
    }
    match containers.last() {
        Some(last) if !valued => Err(format!("-c {} has no values: put them after it", last.name)),
        _ => Ok(RequestedResources { containers }),
    }
}

fn set(container: &mut NamedRequirements, option: &str, amount: u64) -> Result<(), String> {
    let resources = &mut container.resources;
    let (list, resource) = match option {
        "cpu-request" => (&mut resources.requests, Resource::Cpu),
        "cpu-limit" => (&mut resources.limits, Resource::Cpu),
        "memory-request" => (&mut resources.requests, Resource::Memory),
        _ => (&mut resources.limits, Resource::Memory),
    };
    if list.get(resource).is_some() {
        return Err(format!("--{option} is given twice for container {}", container.name));
    }
    list.set(resource, Some(amount));
    Ok(())
}

/// Refuses what cannot be meant.
fn check(wanted: RequestedResources) -> Result<RequestedResources, String> {
    for container in &wanted.containers {
        let Requirements { requests, limits } = &container.resources;
        if let Some(resource) = Resource::ALL
            .into_iter()
            .find(|resource| limits.get(*resource) == Some(0))
        {
            return Err(format!("--{resource}-limit 0 is no limit: give an amount above it"));
        }
        if let Some((resource, request, limit)) = requests.first_above(limits) {
            return Err(format!(
                "--{resource}-request {request} is above --{resource}-limit {limit}: lower the one or raise the other"
            ));
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Vec<(String, String)>, String> {
        let command = RequestedResources::augment_args(Command::new("resize").no_binary_name(true));
        let matches = command
            .try_get_matches_from(line.split(' '))
            .map_err(|error| error.to_string())?;
        let wanted = RequestedResources::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        let shown = |container: NamedRequirements| {
            let Requirements { requests, limits } = container.resources;
            let texts = Resource::ALL.map(|resource| {
                let text = |list: &crate::model::ResourceList| list.text(resource).unwrap_or_default();
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
    fn values_belong_to_the_containers_named_before_them() {
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
