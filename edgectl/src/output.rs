//! Where text goes, and in which form objects are printed.

use std::io::{self, Write as _};
use std::str::FromStr;

use serde_json::Value;

use crate::failure::Failure;

/// How objects are printed, where a table is not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Yaml,
    Name,
    Wide,
}

impl FromStr for Format {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            "name" => Ok(Self::Name),
            "wide" => Ok(Self::Wide),
            _ => Err("none of json, yaml, name, wide"),
        }
    }
}

/// Writes to the standard output.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref())
        .and_then(|()| out.flush())
        .map_err(Failure::Output)
}

/// Writes a remark, which is not part of the result, to the standard error.
pub(crate) fn remark(text: &str) {
    // With nobody there to read it, there is nobody to tell either.
    let _ = writeln!(io::stderr(), "{text}");
}

pub(crate) fn json(object: &Value) -> String {
    format!("{object:#}\n")
}

pub(crate) fn yaml(object: &Value) -> Result<String, Failure> {
    let options = serde_saphyr::ser_options! { compact_list_indent: true };
    let mut text = String::new();
    let written = serde_saphyr::to_fmt_writer_with_options(&mut text, object, options);
    written.map_err(|error| Failure::Output(io::Error::other(error)))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_reads_as_it_was_written() {
        let tricky = json!({
            "a": ["yes", "on", "1", "0644", "1e3", "null", "~", "", "- x", "a: b", "#c", " padded ", "two\nlines\n", "tab\t"],
            "b": {"true": true, "empty": {}, "list": [], "nothing": null},
            "number": 3, "big": u64::MAX, "part": 0.5, "control": "\u{1}\u{7f}",
        });
        let text = yaml(&tricky).unwrap();
        let back: Vec<Value> = crate::manifest::parse("x", &text).unwrap();
        assert_eq!(back, [tricky], "{text}");
        assert_eq!(yaml(&json!({"a": [{"b": 1, "c": 2}]})).unwrap(), "a:\n- b: 1\n  c: 2\n");
    }
}
