//! Text as Go quotes it in messages (`%q`): what clients compare and people read.

use std::fmt::{self, Write as _};

/// Shows a text in double quotes, with Go's escapes.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'t>(pub &'t str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for one in self.0.chars() {
            let code = u32::from(one);
            match one {
                '"' | '\\' => write!(f, "\\{one}")?,
                '\u{7}' => f.write_str("\\a")?,
                '\u{8}' => f.write_str("\\b")?,
                '\u{c}' => f.write_str("\\f")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                '\u{b}' => f.write_str("\\v")?,
                '\0'..='\u{1f}' | '\u{7f}' => write!(f, "\\x{code:02x}")?,
                ' '..='~' => f.write_char(one)?,
                // Rust and Go agree on what is printable but for spaces other than the plain one.
                _ if one.is_whitespace() || one.escape_debug().len() > 1 => match u16::try_from(code) {
                    Ok(code) => write!(f, "\\u{code:04x}")?,
                    Err(_) => write!(f, "\\U{code:08x}")?,
                },
                _ => f.write_char(one)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_go_does() {
        let check = |text: &str, quoted: &str| assert_eq!(Quoted(text).to_string(), quoted);
        check("a'b\"c\\", r#""a'b\"c\\""#);
        check("\0\u{7}\n\t\u{7f}\u{1b}", r#""\x00\a\n\t\x7f\x1b""#);
        check("é日", "\"é日\"");
        check("\u{a0}\u{200b}\u{e0001}", r#""\u00a0\u200b\U000e0001""#);
    }
}
