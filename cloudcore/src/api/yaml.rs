//! YAML out: enough for a client that asks for it instead of JSON. Every string that could be read as something else is
//! written as a JSON string, which is YAML too.

use std::fmt::Write as _;

use proto::value::{Value, json};

/// Writes a document in block style.
pub(super) fn write(value: &Value) -> String {
    let mut out = String::new();
    node(&mut out, value, 0, false);
    out
}

/// `inline` says that the node begins behind `- `, where the first field needs no indentation.
fn node(out: &mut String, value: &Value, depth: usize, inline: bool) {
    let indent = |out: &mut String, first: bool| {
        if !(first && inline) {
            out.extend(std::iter::repeat_n(' ', depth));
        }
    };
    match value {
        Value::Map(map) if !map.is_empty() => {
            for (at, (field, value)) in map.iter().enumerate() {
                indent(out, at == 0);
                let _ = write!(out, "{}:", scalar(&Value::from(field)));
                match value {
                    Value::Map(map) if !map.is_empty() => {
                        out.push('\n');
                        node(out, value, depth + 2, false);
                    }
                    Value::List(list) if !list.is_empty() => {
                        out.push('\n');
                        node(out, value, depth, false);
                    }
                    value => {
                        let _ = writeln!(out, " {}", scalar(value));
                    }
                }
            }
        }
        Value::List(list) if !list.is_empty() => {
            for (at, element) in list.iter().enumerate() {
                indent(out, at == 0);
                out.push_str("- ");
                match element {
                    Value::Map(map) if !map.is_empty() => node(out, element, depth + 2, true),
                    Value::List(list) if !list.is_empty() => node(out, element, depth + 2, true),
                    element => {
                        let _ = writeln!(out, "{}", scalar(element));
                    }
                }
            }
        }
        value => {
            indent(out, true);
            let _ = writeln!(out, "{}", scalar(value));
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Text(text) if is_plain(text) => text.to_string(),
        value => json::write(value),
    }
}

/// Whether a string without quotes is read back as the same string, by readers of YAML 1.1 too.
fn is_plain(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let word = !matches!(
        lower.as_str(),
        "y" | "n" | "yes" | "no" | "on" | "off" | "true" | "false" | "null" | "inf" | "nan"
    );
    word && text.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
        && text.bytes().last() != Some(b':')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_./:@".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents() {
        let check = |text: &str, yaml: &str| {
            assert_eq!(write(&json::parse(text.as_bytes()).unwrap()), yaml);
        };
        check(
            r#"{"a":{"b":[{"c":1,"d":"x"},[1,2],{}],"e":"yes"},"f":"0x1","g":[],"h":"two\nlines","i":null}"#,
            "a:\n  b:\n  - c: 1\n    d: x\n  - - 1\n    - 2\n  - {}\n  e: \"yes\"\nf: \"0x1\"\ng: []\nh: \"two\\nlines\"\ni: null\n",
        );
        check("[]", "[]\n");
        check(r#""a: b""#, "\"a: b\"\n");
        check(r#"{"y":1}"#, "\"y\": 1\n");
    }
}
