//! `-c NAME` with the values that follow it, once for each container.
//!
//! Values belong to the container named last before them, or to all containers named in a row: `-c app --cpu-limit 1 -c
//! side -c proxy --memory-limit 64Mi`. With one container alone the order does not matter.

use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches};

use crate::model::{Bytes, MilliCpu, NamedRequirements, Requirements, Resource, ResourceList};

const CONTAINER: &str = "container";

/// An option with an amount: its name, its help, its resource, and the list that it sets.
type AmountOption = (
    &'static str,
    &'static str,
    Resource,
    fn(&mut Requirements) -> &mut ResourceList,
);

const OPTIONS: [AmountOption; 4] = [
    (
        "cpu-request",
        "Reserved cpu, such as 250m",
        Resource::Cpu,
        |resources| &mut resources.requests,
    ),
    ("cpu-limit", "Most cpu it may use", Resource::Cpu, |resources| {
        &mut resources.limits
    }),
    (
        "memory-request",
        "Reserved memory, such as 128Mi",
        Resource::Memory,
        |resources| &mut resources.requests,
    ),
    (
        "memory-limit",
        "Most memory it may use",
        Resource::Memory,
        |resources| &mut resources.limits,
    ),
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
        let values = OPTIONS.map(|(name, help, resource, _)| {
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
        let names: Vec<(usize, String)> = occurrences(matches, CONTAINER).collect();
        let mut values: Vec<Value> = Vec::new();
        for option in OPTIONS {
            values.extend(occurrences(matches, option.0).map(|(index, amount)| (index, option, amount)));
        }
        values.sort_by_key(|(index, ..)| *index);
        let containers =
            assign(&names, &values).map_err(|message| clap::Error::raw(ErrorKind::ValueValidation, message))?;
        Ok(Self { containers })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// An amount with its place on the command line and its option.
type Value = (usize, AmountOption, u64);

/// The values of an option with their places on the command line.
fn occurrences<'a, T: Clone + Send + Sync + 'static>(
    matches: &'a ArgMatches,
    name: &str,
) -> impl Iterator<Item = (usize, T)> + use<'a, T> {
    let indices = matches.indices_of(name).into_iter().flatten();
    let values = matches.get_many::<T>(name).into_iter().flatten().cloned();
    indices.zip(values)
}

/// Assigns the values to the containers. Both are in the order of the command line.
fn assign(names: &[(usize, String)], values: &[Value]) -> Result<Vec<NamedRequirements>, String> {
    let place = |at: usize| match names.get(at) {
        Some(_) if names.len() == 1 => 0,
        Some((index, _)) => *index,
        None => usize::MAX,
    };
    if let Some((_, (option, ..), _)) = values.iter().find(|(index, ..)| *index < place(0)) {
        return Err(format!("--{option} is for no container: put -c NAME before it"));
    }
    let mut containers = Vec::new();
    for (at, (_, name)) in names.iter().enumerate() {
        if names[..at].iter().any(|(_, other)| other == name) {
            return Err(format!("-c {name} is given twice: name each container once"));
        }
        // A container without values of its own shares those of the next container that has some.
        let until = |end: usize| {
            values
                .iter()
                .filter(move |(index, ..)| (place(at)..place(end)).contains(index))
        };
        let end = (at + 1..=names.len()).find(|end| until(*end).next().is_some());
        let end = end.ok_or_else(|| format!("-c {name} has no values: put them after it"))?;
        let mut resources = Requirements::default();
        for (_, (option, _, resource, list), amount) in until(end) {
            let list = list(&mut resources);
            if list.get(*resource).is_some() {
                return Err(format!("--{option} is given twice for container {name}"));
            }
            list.set(*resource, Some(*amount));
        }
        check(&resources)?;
        let name = name.clone();
        containers.push(NamedRequirements { name, resources });
    }
    Ok(containers)
}

/// Refuses a limit of zero, and a request above its limit.
fn check(Requirements { requests, limits }: &Requirements) -> Result<(), String> {
    let is_zero = |resource: &Resource| limits.get(*resource) == Some(0);
    if let Some(resource) = Resource::ALL.into_iter().find(is_zero) {
        return Err(format!("--{resource}-limit 0 is no limit: give an amount above it"));
    }
    if let Some((resource, request, limit)) = requests.first_above(limits) {
        return Err(format!(
            "--{resource}-request {request} is above --{resource}-limit {limit}: lower the one or raise the other"
        ));
    }
    Ok(())
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
