//! The grammar: `name value;` and `name { … }`, values bare or quoted, comments with `#`, `//` and
//! `/* */`.

use std::ops::Deref;

use zeroize::Zeroizing;

use super::error::Mistake;

/// Blocks within blocks.
const DEPTH_MAX: usize = 8;
/// Statements in a file: more than the routes of the longest file have.
const STATEMENTS_MAX: usize = 4 << 20;

/// `name value;` or `name { … }`.
#[derive(Debug)]
pub(crate) struct Statement<'t> {
    /// The line of the name, from 1.
    pub(crate) line: u32,
    pub(crate) name: &'t str,
    pub(crate) body: Body<'t>,
}

#[derive(Debug)]
pub(crate) enum Body<'t> {
    Leaf(Value<'t>),
    Block(Vec<Statement<'t>>),
}

/// The value of a leaf. May be a key: wiped where it is a copy, and not displayed.
pub(crate) enum Value<'t> {
    Text(&'t str),
    /// A quoted string with something in it that had to be replaced.
    Replaced(Zeroizing<String>),
}

impl Deref for Value<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Value::Text(text) => text,
            Value::Replaced(text) => text,
        }
    }
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Value({} bytes)", self.len())
    }
}

/// The statements of a file.
///
/// # Errors
/// The first place that is not of the grammar. What stands there is told by its kind and never
/// quoted: it may be a key.
pub(crate) fn parse(text: &str) -> Result<Vec<Statement<'_>>, Mistake> {
    let mut parser = Parser {
        tokens: Tokens {
            rest: text.strip_prefix('\u{feff}').unwrap_or(text),
            line: 1,
        },
        statements: 0,
    };
    parser.block(0, 1)
}

struct Parser<'t> {
    tokens: Tokens<'t>,
    statements: usize,
}

impl<'t> Parser<'t> {
    /// Statements until the end of the block that began on line `opened`, or of the file at depth
    /// 0.
    fn block(&mut self, depth: usize, opened: u32) -> Result<Vec<Statement<'t>>, Mistake> {
        let mut statements = Vec::new();
        loop {
            let (line, token) = self.tokens.next()?;
            let name = match token {
                Token::Word(name) => name,
                Token::Close if depth > 0 => return Ok(statements),
                Token::End if depth == 0 => return Ok(statements),
                Token::End => {
                    return Err(Mistake::at(line)
                        .found("the end of the file")
                        .expected(format!("\"}}\" for the block of line {opened}")));
                }
                other => {
                    let expected = match depth {
                        0 => "a name",
                        _ => "a name or \"}\"",
                    };
                    return Err(Mistake::at(line).found(other.kind()).expected(expected));
                }
            };
            self.statements += 1;
            if self.statements > STATEMENTS_MAX {
                return Err(Mistake::at(line)
                    .found("another statement")
                    .expected(format!("at most {STATEMENTS_MAX} in a file")));
            }
            let body = self.body(name, line, depth)?;
            statements.push(Statement { line, name, body });
        }
    }

    fn body(&mut self, name: &'t str, opened: u32, depth: usize) -> Result<Body<'t>, Mistake> {
        let (line, token) = self.tokens.next()?;
        let value = match token {
            Token::Open if depth == DEPTH_MAX => {
                return Err(Mistake::at(line)
                    .found("a block within a block")
                    .expected(format!("at most {DEPTH_MAX} deep")));
            }
            Token::Open => return Ok(Body::Block(self.block(depth + 1, opened)?)),
            Token::Word(text) => Value::Text(text),
            Token::Quoted(value) => value,
            other => {
                return Err(Mistake::at(line)
                    .leaf(name)
                    .found(other.kind())
                    .expected("a value or \"{\""));
            }
        };
        let (line, token) = self.tokens.next()?;
        match token {
            Token::Semicolon => Ok(Body::Leaf(value)),
            other => {
                // The usual slip is the semicolon at the end of the line above: that is the line to
                // fix.
                let at = if line > opened {
                    format!(" on line {line}")
                } else {
                    String::new()
                };
                Err(Mistake::at(opened)
                    .leaf(name)
                    .found(format!("{}{at}", other.kind()))
                    .expected("\";\" after its value"))
            }
        }
    }
}

enum Token<'t> {
    Word(&'t str),
    Quoted(Value<'t>),
    Semicolon,
    Open,
    Close,
    End,
}

impl Token<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Token::Word(_) => "a word",
            Token::Quoted(_) => "a quoted string",
            Token::Semicolon => "\";\"",
            Token::Open => "\"{\"",
            Token::Close => "\"}\"",
            Token::End => "the end of the file",
        }
    }
}

struct Tokens<'t> {
    rest: &'t str,
    line: u32,
}

impl<'t> Tokens<'t> {
    /// The next token and the line where it begins.
    fn next(&mut self) -> Result<(u32, Token<'t>), Mistake> {
        self.skip()?;
        let line = self.line;
        let Some(first) = self.rest.chars().next() else {
            return Ok((line, Token::End));
        };
        let token = match first {
            ';' => Token::Semicolon,
            '{' => Token::Open,
            '}' => Token::Close,
            '"' | '\'' => return Ok((line, Token::Quoted(self.quoted(first)?))),
            _ => {
                let word = word(self.rest);
                self.advance(word.len());
                return Ok((line, Token::Word(word)));
            }
        };
        self.advance(1);
        Ok((line, token))
    }

    /// Skips white space and comments.
    fn skip(&mut self) -> Result<(), Mistake> {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.advance(blank);
            if self.rest.starts_with('#') || self.rest.starts_with("//") {
                self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if let Some(comment) = self.rest.strip_prefix("/*") {
                let Some(end) = comment.find("*/") else {
                    return Err(Mistake::at(self.line)
                        .found("a comment without an end")
                        .expected("\"*/\""));
                };
                self.advance(end + 4);
            } else {
                return Ok(());
            }
        }
    }

    /// A string in quotes, and those that `+` joins to it.
    fn quoted(&mut self, quote: char) -> Result<Value<'t>, Mistake> {
        let mut value = self.piece(quote)?;
        loop {
            self.skip()?;
            if !self.rest.starts_with('+') {
                return Ok(value);
            }
            self.advance(1);
            self.skip()?;
            let quote = match self.rest.chars().next() {
                Some(quote @ ('"' | '\'')) => quote,
                _ => {
                    return Err(Mistake::at(self.line)
                        .found("something else behind \"+\"")
                        .expected("another quoted string"));
                }
            };
            let piece = self.piece(quote)?;
            let mut joined = Zeroizing::new(String::with_capacity(value.len() + piece.len()));
            joined.push_str(&value);
            joined.push_str(&piece);
            value = Value::Replaced(joined);
        }
    }

    /// One string in quotes; in double ones a backslash escapes.
    fn piece(&mut self, quote: char) -> Result<Value<'t>, Mistake> {
        let line = self.line;
        let text = self.rest.get(1..).unwrap_or_default();
        let mut escaped = false;
        let mut replaced = false;
        let end = text.bytes().position(|byte| {
            let ends = byte == quote as u8 && !escaped;
            escaped = quote == '"' && byte == b'\\' && !escaped;
            replaced |= escaped;
            ends
        });
        let Some(inside) = end.and_then(|end| text.get(..end)) else {
            return Err(Mistake::at(line)
                .found("a quoted string without an end")
                .expected(format!("{quote} behind it")));
        };
        self.advance(inside.len() + 2);
        if !replaced {
            return Ok(Value::Text(inside));
        }
        let mut result = Zeroizing::new(String::with_capacity(inside.len()));
        let mut chars = inside.chars();
        while let Some(char) = chars.next() {
            match (char, chars.clone().next()) {
                ('\\', Some(next @ ('n' | 't' | '"' | '\\'))) => {
                    result.push(match next {
                        'n' => '\n',
                        't' => '\t',
                        other => other,
                    });
                    chars.next();
                }
                _ => result.push(char),
            }
        }
        Ok(Value::Replaced(result))
    }

    fn advance(&mut self, bytes: usize) {
        let (before, after) = self.rest.split_at(bytes);
        let lines = before.bytes().filter(|&byte| byte == b'\n').count();
        self.line += lines as u32;
        self.rest = after;
    }
}

/// The bare word at the start of `text`: until white space, punctuation or a comment.
fn word(text: &str) -> &str {
    let mut end = text.len();
    for (at, char) in text.char_indices() {
        let ends = match char {
            ';' | '{' | '}' | '"' | '\'' => true,
            '/' => text
                .get(at + 1..)
                .is_some_and(|next| next.starts_with(['/', '*'])),
            _ => char.is_whitespace(),
        };
        if ends {
            end = at;
            break;
        }
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The tree in one line.
    fn tree(text: &str) -> String {
        fn show(statements: &[Statement<'_>]) -> String {
            let shown = statements.iter().map(|s| match &s.body {
                Body::Leaf(value) => format!("{}:{}={:?}", s.line, s.name, &**value),
                Body::Block(inside) => format!("{}:{}({})", s.line, s.name, show(inside)),
            });
            shown.collect::<Vec<_>>().join(" ")
        }
        match parse(text) {
            Ok(statements) => show(&statements),
            Err(mistake) => mistake.to_string(),
        }
    }

    #[test]
    fn leaves_blocks_strings_and_comments_are_read() {
        let cases = [
            ("", ""),
            ("\u{feff}a b;", r#"1:a="b""#),
            ("a 1;b{c 2;}", r#"1:a="1" 1:b(2)"#),
            ("a {\n b { c d; }\n}\ne f;", r#"1:a(2:b(2:c="d")) 4:e="f""#),
            ("# x\na # y\n // z\n /* ;\n */ b /**/ ; #", r#"2:a="b""#),
            (
                "a b#c; d /e/f; g h//i\n;",
                r#"1:a="b#c" 1:d="/e/f" 1:g="h""#,
            ),
            (
                r#"a "b c"; d 'e\n"'; f "\n\t\"\\\x";"#,
                r#"1:a="b c" 1:d="e\\n\"" 1:f="\n\t\"\\\\x""#,
            ),
            (
                "a \"b\nc\"; d\n\"e\" + 'f'\n + \"g\";",
                r#"1:a="b\nc" 2:d="efg""#,
            ),
            (r#"a ""; b "\\";"#, r#"1:a="" 1:b="\\""#),
        ];
        for (text, expected) in cases {
            let expected = expected.replace("b(2)", r#"b(1:c="2")"#);
            assert_eq!(tree(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_of_the_grammar_is_told_with_its_line_and_without_its_text() {
        let deep = "a {".repeat(9);
        let cases = [
            (
                "a",
                r#"1: leaf "a": found the end of the file, expected a value or "{""#,
            ),
            ("\na;", r#"2: leaf "a": found ";", expected a value or "{""#),
            (
                "a b",
                r#"1: leaf "a": found the end of the file, expected ";" after its value"#,
            ),
            (
                "a 00ff 00ff;",
                r#"1: leaf "a": found a word, expected ";" after its value"#,
            ),
            (
                "a b\nc d;",
                r#"1: leaf "a": found a word on line 2, expected ";" after its value"#,
            ),
            (
                "route x { }",
                r#"1: leaf "route": found "{", expected ";" after its value"#,
            ),
            (
                "a {\n\n",
                r#"3: found the end of the file, expected "}" for the block of line 1"#,
            ),
            ("}", r#"1: found "}", expected a name"#),
            ("a { ; }", r#"1: found ";", expected a name or "}""#),
            ("\"a\" b;", "1: found a quoted string, expected a name"),
            (
                "a \"b\n;",
                "1: found a quoted string without an end, expected \" behind it",
            ),
            (
                "a 'b\\'\n'c';",
                r#"1: leaf "a": found a quoted string on line 2, expected ";" after its value"#,
            ),
            (
                "a \"b\" + c;",
                "1: found something else behind \"+\", expected another quoted string",
            ),
            (
                "a b;\n/* c",
                "2: found a comment without an end, expected \"*/\"",
            ),
            (
                &deep,
                "1: found a block within a block, expected at most 8 deep",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(tree(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in r#"([a-z ;{}"'\\#/*+\n]|é){0,60}"#) {
            let _ = parse(&text);
        }
    }
}
