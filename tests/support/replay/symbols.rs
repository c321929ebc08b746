//! Symbols of a recording, and what they stand for in this run.

use std::collections::BTreeMap;

/// What symbols are bound to.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    bound: BTreeMap<String, String>,
    /// Recorded entity tags and those of this server.
    etags: BTreeMap<String, String>,
}

/// A piece of a recorded text.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Literal(&'a str),
    /// The symbol with its brackets, and its kind.
    Symbol(&'a str, &'a str),
}

const KINDS: [&str; 10] = [
    "uid", "rv", "continue", "gen", "ip", "port", "token", "ts", "age", "hash",
];

impl Symbols {
    pub(super) fn bind(&mut self, symbol: &str, value: String) {
        self.bound.insert(symbol.to_owned(), value);
    }

    pub(super) fn get(&self, symbol: &str) -> Option<&str> {
        self.bound.get(symbol).map(String::as_str)
    }

    /// The symbols of one kind that are bound, with their values.
    pub(super) fn of_kind(&self, kind: &str) -> impl Iterator<Item = (&str, &str)> {
        let start = format!("<{kind}:");
        let bound = self.bound.iter().filter(move |(symbol, _)| symbol.starts_with(&start));
        bound.map(|(symbol, value)| (symbol.as_str(), value.as_str()))
    }

    /// The symbols of one kind in a text that nothing is known of.
    pub(super) fn unbound(&self, text: &str, kind: &str) -> Vec<String> {
        let symbols = pieces(text).into_iter().filter_map(|piece| match piece {
            Piece::Symbol(symbol, found) if found == kind && symbol.contains(':') => Some(symbol.to_owned()),
            _ => None,
        });
        symbols.filter(|symbol| !self.bound.contains_key(symbol)).collect()
    }

    /// A recorded text with symbols replaced. Identities that nothing is known of are made up; times are some time.
    pub(super) fn put(&mut self, text: &str) -> String {
        let mut out = String::new();
        for piece in pieces(text) {
            match piece {
                Piece::Literal(literal) => out.push_str(literal),
                Piece::Symbol(symbol, kind) => match (self.bound.get(symbol), kind) {
                    (Some(value), _) => out.push_str(value),
                    (None, "uid") => {
                        let uid = daemon::random::uid().to_string();
                        out.push_str(&uid);
                        self.bind(symbol, uid);
                    }
                    (None, "ts") => out.push_str("2026-01-02T03:04:05Z"),
                    (None, "rv") => out.push('1'),
                    (None, _) => out.push_str(symbol),
                },
            }
        }
        out
    }

    /// What a header says here: a recorded entity tag becomes this server's.
    pub(super) fn etag(&self, name: &str, value: &str) -> String {
        if name.eq_ignore_ascii_case("if-none-match") {
            self.etags.get(value).cloned().unwrap_or_else(|| value.to_owned())
        } else {
            value.to_owned()
        }
    }

    pub(super) fn bind_etag(&mut self, recorded: &str, found: &str) {
        self.etags.insert(recorded.to_owned(), found.to_owned());
    }

    /// Whether a text is the recorded one; binds what it shows for the first time.
    pub(super) fn same(&mut self, recorded: &str, found: &str) -> bool {
        let pieces = pieces(recorded);
        let mut rest = found;
        for (at, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Literal(literal) => match rest.strip_prefix(literal) {
                    Some(tail) => rest = tail,
                    None => return false,
                },
                Piece::Symbol(symbol, kind) => {
                    let end = match pieces.get(at + 1) {
                        Some(Piece::Literal(next)) => rest.find(next).unwrap_or(rest.len()),
                        _ => rest.len(),
                    };
                    let (value, tail) = rest.split_at(end);
                    if !fits(kind, value) {
                        return false;
                    }
                    if symbol.contains(':') {
                        match self.get(symbol) {
                            Some(bound) if bound != value => return false,
                            Some(_) => {}
                            None => self.bind(symbol, value.to_owned()),
                        }
                    }
                    rest = tail;
                }
            }
        }
        rest.is_empty()
    }
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut from = 0;
    while let Some(start) = rest[from..].find('<').map(|at| at + from) {
        let Some(end) = rest[start..].find('>').map(|at| at + start + 1) else {
            break;
        };
        let symbol = &rest[start..end];
        let inner = &symbol[1..symbol.len() - 1];
        let (kind, number) = inner.split_once(':').unwrap_or((inner, "0"));
        if KINDS.contains(&kind) && number.bytes().all(|byte| byte.is_ascii_digit()) {
            if start > 0 {
                pieces.push(Piece::Literal(&rest[..start]));
            }
            pieces.push(Piece::Symbol(symbol, kind));
            rest = &rest[end..];
            from = 0;
        } else {
            from = start + 1;
        }
    }
    if !rest.is_empty() {
        pieces.push(Piece::Literal(rest));
    }
    pieces
}

/// Whether a value can be what a symbol of a kind stands for.
fn fits(kind: &str, value: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match kind {
        "uid" => value.parse::<proto::object::Uid>().is_ok(),
        "rv" | "port" => digits(value),
        "gen" => value.len() == 5 && value.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte)),
        "ip" => value.parse::<std::net::IpAddr>().is_ok(),
        "ts" => match value.split_once('.') {
            None => proto::time::parse_rfc3339(value).is_some(),
            Some((whole, fraction)) => {
                let fraction = fraction.strip_suffix('Z');
                proto::time::parse_rfc3339(&format!("{whole}Z")).is_some() && fraction.is_some_and(digits)
            }
        },
        _ => !value.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_bound_once() {
        let mut symbols = Symbols::default();
        assert!(symbols.same("gen-<gen:1>", "gen-bcdfg"));
        assert!(symbols.same("x <gen:1>.", "x bcdfg."));
        assert!(!symbols.same("<gen:1>", "bcdfh"));
        assert!(!symbols.same("<gen:2>", "aaaaa"));
        assert!(symbols.same("at <ts>", "at 2026-01-02T03:04:05.123456Z"));
        assert!(symbols.same("a<b>c", "a<b>c"));
        assert_eq!(symbols.put("/x/<gen:1>?<none>"), "/x/bcdfg?<none>");
        assert_eq!(symbols.unbound("<rv:1> <rv> <gen:1>", "rv"), ["<rv:1>"]);
    }
}
