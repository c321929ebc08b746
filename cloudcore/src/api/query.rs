//! The options of a request, from its query.

use super::codec::FieldValidation;
use super::path::decode;
use super::status::{Cause, Refusal};

/// Longest name of a field manager, as the real server has it.
const FIELD_MANAGER_BYTES_MAX: usize = 128;

/// The decoded pairs of a query, in the order they came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads what stands behind the question mark. Empty pairs (`?&limit=500`) mean nothing.
    pub fn parse(text: Option<&str>) -> Self {
        let plain = |text: &str| decode(&text.replace('+', " "));
        let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((plain(name)?, plain(value)?))
        });
        Self(pairs.collect())
    }

    /// The first value of an option; `None` when it is absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Every value of an option.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.0.iter().filter(move |(given, _)| given == name);
        named.map(|(_, value)| value.as_str())
    }

    /// The value of an option; empty when it is absent, which Kubernetes' clients mean by it.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// A flag: present without a value counts as set.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| !matches!(value, "0" | "f" | "F" | "false" | "False" | "FALSE"))
    }

    /// A whole number; what is none counts as absent, as it does in the real server.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }
}

/// How a revision named in a list is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    NotOlderThan,
    Exact,
}

/// The options of a list or a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListOptions {
    pub labels: String,
    pub fields: String,
    pub watch: bool,
    /// The revision asked for; `None` when none was given.
    pub revision: Option<u64>,
    pub revision_match: Option<Match>,
    pub limit: Option<usize>,
    pub resume: Option<String>,
    pub timeout_s: Option<u64>,
    pub bookmarks: bool,
    /// Whether a watch begins with what is there, and a bookmark behind it.
    pub initial: Option<bool>,
}

impl ListOptions {
    pub fn of(query: &Query) -> Result<Self, Refusal> {
        let watch = query.flag("watch");
        let initial = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
        let matching = query.text("resourceVersionMatch");
        let given = query.text("resourceVersion");
        let mut wrong = Vec::new();
        let field = "resourceVersionMatch";
        if watch {
            if initial.is_some() {
                if matching != "NotOlderThan" {
                    let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                    wrong.push(Cause::forbidden(field, detail));
                }
            } else if !matching.is_empty() {
                let detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                wrong.push(Cause::forbidden(field, detail));
                if matching != "NotOlderThan" {
                    wrong.push(Cause::unsupported(field, &format!("{matching:?}"), "\"NotOlderThan\""));
                }
            }
        } else {
            if !matching.is_empty() {
                if given.is_empty() {
                    let detail = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                    wrong.push(Cause::forbidden(field, detail));
                }
                if !query.text("continue").is_empty() {
                    let detail = "resourceVersionMatch is forbidden when continue is provided";
                    wrong.push(Cause::forbidden(field, detail));
                }
                if !matches!(matching, "Exact" | "NotOlderThan") {
                    let supported = "\"Exact\", \"NotOlderThan\", \"\"";
                    wrong.push(Cause::unsupported(field, &format!("{matching:?}"), supported));
                }
                if matching == "Exact" && given == "0" {
                    let detail = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                    wrong.push(Cause::forbidden(field, detail));
                }
            }
            if initial.is_some() {
                let detail = "sendInitialEvents is forbidden for list";
                wrong.push(Cause::forbidden("sendInitialEvents", detail));
            }
        }
        if !wrong.is_empty() {
            return Err(Refusal::options("ListOptions", &wrong));
        }
        let revision = match given {
            "" => None,
            text => Some(
                revision(text)
                    .map_err(|why| Refusal::unreasoned(format!("resourceVersion: Invalid value: {text:?}: {why}")))?,
            ),
        };
        Ok(Self {
            labels: query.text("labelSelector").to_owned(),
            fields: query.text("fieldSelector").to_owned(),
            watch,
            revision,
            revision_match: match matching {
                "Exact" => Some(Match::Exact),
                "NotOlderThan" => Some(Match::NotOlderThan),
                _ => None,
            },
            limit: query
                .number("limit")
                .and_then(|limit| usize::try_from(limit).ok())
                .filter(|limit| *limit > 0),
            resume: query
                .get("continue")
                .filter(|token| !token.is_empty())
                .map(str::to_owned),
            timeout_s: query.number("timeoutSeconds").filter(|seconds| *seconds > 0),
            bookmarks: query.flag("allowWatchBookmarks"),
            initial,
        })
    }
}

/// Reads a resource version, or says what the real server says about it.
pub(super) fn revision(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("strconv.ParseUint: parsing {text:?}: invalid syntax"))
}

/// The options of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    pub dry_run: bool,
    /// How unknown and doubled fields are taken.
    pub fields: FieldValidation,
}

impl WriteOptions {
    /// `kind` is the kind of options the real server reads for this verb (`CreateOptions`).
    pub fn of(query: &Query, kind: &str) -> Result<Self, Refusal> {
        let mut wrong = Vec::new();
        let dry_run = dry_run(query.all("dryRun"), &mut wrong);
        let manager = query.text("fieldManager");
        if manager.len() > FIELD_MANAGER_BYTES_MAX {
            wrong.push(Cause {
                reason: "FieldValueTooLong",
                field: "fieldManager".to_owned(),
                message: format!("Too long: may not be more than {FIELD_MANAGER_BYTES_MAX} bytes"),
            });
        }
        let validation = query.text("fieldValidation");
        let fields = FieldValidation::of_query(validation).unwrap_or_else(|| {
            let supported = "\"\", \"Ignore\", \"Strict\", \"Warn\"";
            wrong.push(Cause::unsupported(
                "fieldValidation",
                &format!("{validation:?}"),
                supported,
            ));
            FieldValidation::Strict
        });
        if wrong.is_empty() {
            Ok(Self { dry_run, fields })
        } else {
            Err(Refusal::options(kind, &wrong))
        }
    }
}

/// Whether a write is only tried; notes values other than `All`.
pub(super) fn dry_run<'a>(values: impl Iterator<Item = &'a str>, wrong: &mut Vec<Cause>) -> bool {
    let values: Vec<&str> = values.filter(|value| !value.is_empty()).collect();
    if values.iter().any(|value| *value != "All") {
        let quoted: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
        wrong.push(Cause::unsupported(
            "dryRun",
            &format!("[{}]", quoted.join(",")),
            "\"All\"",
        ));
    }
    !values.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs() {
        let query = Query::parse(Some(
            "&limit=500&labelSelector=a%20in+(b)&watch&dryRun=All&dryRun=x&bad=%zz",
        ));
        assert_eq!(query.number("limit"), Some(500));
        assert_eq!(query.text("labelSelector"), "a in (b)");
        assert!(query.flag("watch") && !query.flag("follow"));
        assert_eq!(query.all("dryRun").collect::<Vec<_>>(), ["All", "x"]);
        assert_eq!(query.get("bad"), None);
        assert!(!Query::parse(Some("watch=false")).flag("watch"));
        assert_eq!(Query::parse(None), Query::default());
    }

    #[test]
    fn list_options() {
        let of = |text: &str| ListOptions::of(&Query::parse(Some(text)));
        let refused = |text: &str, message: &str| assert_eq!(of(text).unwrap_err().message, message, "{text}");
        refused(
            "resourceVersion=abc",
            "resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax",
        );
        refused(
            "watch=1&sendInitialEvents=true",
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
        refused(
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            "ListOptions.meta.k8s.io \"\" is invalid: [resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided, sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list]",
        );
        let options = of("limit=0&continue=&resourceVersion=7&resourceVersionMatch=Exact").unwrap();
        assert_eq!(options.limit, None);
        assert_eq!(options.resume, None);
        assert_eq!(
            (options.revision, options.revision_match),
            (Some(7), Some(Match::Exact))
        );
    }

    #[test]
    fn write_options() {
        let of = |text: &str| WriteOptions::of(&Query::parse(Some(text)), "CreateOptions");
        assert_eq!(
            of("").unwrap(),
            WriteOptions { dry_run: false, fields: FieldValidation::Warn }
        );
        assert!(of("dryRun=All").unwrap().dry_run);
        assert_eq!(
            of("dryRun=Some").unwrap_err().message,
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: supported values: \"All\""
        );
        assert!(of("fieldValidation=Nope").is_err());
        let manager = |length: usize| of(&format!("fieldManager={}", "x".repeat(length)));
        assert!(manager(128).is_ok() && manager(129).is_err());
    }
}
