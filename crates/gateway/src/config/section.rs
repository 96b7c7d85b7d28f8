//! A block as it is read: what is known in it, and what is told of the rest.

use super::error::{self, Mistake, Mistakes};
use super::leaves::{Block, Leaf};
use super::syntax::{Body, Statement};
use super::value::Wrong;

/// A value and where it stands.
#[derive(Debug)]
pub(crate) struct Placed<T> {
    pub(crate) value: T,
    pub(crate) line: u32,
    pub(crate) leaf: &'static str,
}

impl<T> Placed<T> {
    /// The line and the leaf.
    pub(crate) fn at(&self) -> (u32, &'static str) {
        (self.line, self.leaf)
    }
}

/// The statements of one block, every one of them known and in its number.
pub(crate) struct Section<'t> {
    /// The name of the block in errors: empty at the top.
    pub(crate) place: String,
    /// The line where the block begins.
    pub(crate) line: u32,
    block: &'static Block,
    statements: &'t [Statement<'t>],
}

impl<'t> Section<'t> {
    /// The file.
    pub(crate) fn file(
        block: &'static Block,
        statements: &'t [Statement<'t>],
        mistakes: &mut Mistakes,
    ) -> Section<'t> {
        Section::open(String::new(), 1, block, statements, mistakes)
    }

    fn open(
        place: String,
        line: u32,
        block: &'static Block,
        statements: &'t [Statement<'t>],
        mistakes: &mut Mistakes,
    ) -> Section<'t> {
        let section = Section {
            place,
            line,
            block,
            statements,
        };
        // What was seen at which line; a block has two dozen names at most.
        let mut seen: Vec<(&str, u32)> = Vec::new();
        for statement in statements {
            let (known, repeats) = match &statement.body {
                Body::Leaf(_) => {
                    let leaf = block.find(statement.name);
                    (leaf.is_some(), leaf.is_some_and(|leaf| leaf.repeats))
                }
                Body::Block(_) => {
                    let inner = block.block(statement.name);
                    (inner.is_some(), inner.is_some_and(|inner| inner.repeats))
                }
            };
            if !known {
                mistakes.push_with(|| section.unknown(statement));
            } else if !repeats {
                match seen.iter().find(|(name, _)| *name == statement.name) {
                    Some((_, first)) => mistakes.push_with(|| {
                        section
                            .mistake(statement.line)
                            .found(format!("{} again", error::name(statement.name)))
                            .expected(format!("only that of line {first}"))
                    }),
                    None => seen.push((statement.name, statement.line)),
                }
            }
        }
        section
    }

    /// The block's name.
    pub(crate) fn kind(&self) -> &'static str {
        self.block.name
    }

    /// A mistake in this block.
    pub(crate) fn mistake(&self, line: u32) -> Mistake {
        Mistake::at(line).within(&self.place)
    }

    fn unknown(&self, statement: &Statement<'_>) -> Mistake {
        let name = error::name(statement.name);
        let mistake = self.mistake(statement.line);
        let mistake = match &statement.body {
            Body::Leaf(_) if self.block.block(statement.name).is_some() => {
                return mistake
                    .found(format!("a value of {name}"))
                    .expected(format!("a block: {} {{ … }}", statement.name));
            }
            Body::Block(_) if self.block.find(statement.name).is_some() => {
                return mistake
                    .found(format!("a block {name}"))
                    .expected(format!("a value: {} …;", statement.name));
            }
            Body::Leaf(_) => mistake.found(format!("leaf {name}")),
            Body::Block(_) => mistake.found(format!("block {name}")),
        };
        let leaves = self.block.leaves.iter().map(|leaf| leaf.name);
        let blocks = self.block.blocks.iter().map(|block| block.name);
        let known: Vec<&str> = leaves.chain(blocks).collect();
        let mut mistake = mistake.expected(format!("one of {}", known.join(", ")));
        mistake.suggestion = nearest(statement.name, &known).map(Box::from);
        mistake
    }

    /// Returns the leaf `name`, read by `read`; `None` if it is missing or invalid, and the latter
    /// is reported.
    pub(crate) fn optional<T>(
        &self,
        name: &'static str,
        mistakes: &mut Mistakes,
        read: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Option<Placed<T>> {
        self.several(&[name], mistakes, |_, value| read(value))
            .into_iter()
            .next()
    }

    /// As [`optional`](Self::optional); that it is not there is told too.
    pub(crate) fn required<T>(
        &self,
        name: &'static str,
        mistakes: &mut Mistakes,
        read: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Option<Placed<T>> {
        if !self.has(name) {
            mistakes.push_with(|| self.missing(name));
        }
        self.optional(name, mistakes, read)
    }

    /// All leaves of these names in their order; the wrong ones are told and left out.
    pub(crate) fn several<T>(
        &self,
        names: &[&'static str],
        mistakes: &mut Mistakes,
        read: impl Fn(&'static str, &str) -> Result<T, Wrong>,
    ) -> Vec<Placed<T>> {
        let mut values = Vec::new();
        for statement in self.statements {
            let Body::Leaf(value) = &statement.body else {
                continue;
            };
            let Some(leaf) = self
                .block
                .find(statement.name)
                .filter(|leaf| names.contains(&leaf.name))
            else {
                continue;
            };
            match read(leaf.name, value) {
                Ok(value) => values.push(Placed {
                    value,
                    line: statement.line,
                    leaf: leaf.name,
                }),
                Err(wrong) => {
                    mistakes.push_with(|| self.wrong(statement.line, leaf, value, wrong));
                }
            }
        }
        values
    }

    fn wrong(&self, line: u32, leaf: &Leaf, value: &str, wrong: Wrong) -> Mistake {
        self.mistake(line)
            .leaf(leaf.name)
            .found(wrong.found.unwrap_or_else(|| error::shown(value)))
            .expected(wrong.expected.unwrap_or_else(|| leaf.value.into()))
    }

    /// That leaf `name` is not there.
    pub(crate) fn missing(&self, name: &'static str) -> Mistake {
        let expected = self.block.find(name).map_or("a value", |leaf| leaf.value);
        self.mistake(self.line)
            .leaf(name)
            .found("nothing")
            .expected(expected)
    }

    /// Returns true if there is a leaf of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.line_of(name).is_some()
    }

    /// Returns the line of the first leaf of this name.
    pub(crate) fn line_of(&self, name: &str) -> Option<u32> {
        self.statements
            .iter()
            .find(|statement| statement.name == name && matches!(statement.body, Body::Leaf(_)))
            .map(|statement| statement.line)
    }

    /// The blocks within that have one of these names, in their order.
    pub(crate) fn blocks(&self, names: &[&str], mistakes: &mut Mistakes) -> Vec<Section<'t>> {
        let mut sections = Vec::new();
        for statement in self.statements {
            let Body::Block(statements) = &statement.body else {
                continue;
            };
            let Some(block) = self
                .block
                .block(statement.name)
                .filter(|block| names.contains(&block.name))
            else {
                continue;
            };
            // A route is called by its id from the first mistake on.
            let id = statements.iter().find_map(|inner| match &inner.body {
                Body::Leaf(value) if inner.name == "id" => Some(&**value),
                _ => None,
            });
            let is_name = |id: &&str| super::value::id(id).is_ok() && !error::could_be_key(id);
            let name = match id.filter(is_name) {
                Some(id) => format!("{} {id}", block.name),
                None => block.name.into(),
            };
            let place = match self.place.as_str() {
                "" => name,
                outer => format!("{outer}: {name}"),
            };
            sections.push(Section::open(
                place,
                statement.line,
                block,
                statements,
                mistakes,
            ));
        }
        sections
    }
}

/// The known word nearest to `found`, where it could be what was meant: at most a third of its
/// letters differ.
pub(crate) fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    // No name is longer, and the work grows with the square.
    const CHARS_MAX: usize = 64;
    let letters: String = found.chars().take(CHARS_MAX).collect();
    let (distance, word) = known
        .iter()
        .map(|word| (strsim::levenshtein(&letters, word), *word))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= (word.len() / 3).max(1) && distance < letters.chars().count()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let known = ["spi", "nexthop-ip4", "preshared-key"];
        for (found, expected) in [
            ("spii", Some("spi")),
            ("sip", None),
            ("nexthop_ip4", Some("nexthop-ip4")),
            ("presharedkey", Some("preshared-key")),
            ("key", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(found, &known), expected, "{found}");
        }
    }
}
