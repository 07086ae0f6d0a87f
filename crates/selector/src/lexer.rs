// SPDX-License-Identifier: Apache-2.0
//! Splits the text of a selector into tokens.
//!
//! As in Calico, the words `in`, `not in`, `contains`, `starts with` and `ends with` are operators only directly after
//! a label, so a label may have these names.

use crate::parser::ParseError;

/// Longest label name that Calico accepts.
pub const MAX_LABEL_LENGTH: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    Label(&'a str),
    Text(&'a str),
    Has(&'a str),
    All,
    Global,
    OpenBrace,
    CloseBrace,
    OpenParen,
    CloseParen,
    Comma,
    Equals,
    Differs,
    Contains,
    StartsWith,
    EndsWith,
    In,
    NotIn,
    Not,
    And,
    Or,
    End,
}

/// A token and the position of its first character, counted in bytes.
pub(crate) type Positioned<'a> = (usize, Token<'a>);

const EXPRESSION: &str = "a label, has(…), all(), global(), ! or (";
const OPERATOR: &str = "==, !=, in, not in, contains, starts with or ends with";

pub(crate) fn tokens(text: &str) -> Result<Vec<Positioned<'_>>, ParseError> {
    let mut lexer = Lexer { text, at: 0, after_label: false };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blanks();
        let start = lexer.at;
        let token = lexer.next()?;
        lexer.after_label = matches!(token, Token::Label(_));
        let is_end = token == Token::End;
        tokens.push((start, token));
        if is_end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    /// Position of the next character, always between characters.
    at: usize,
    after_label: bool,
}

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Result<Token<'a>, ParseError> {
        let Some(first) = self.rest().chars().next() else { return Ok(Token::End) };
        match first {
            '(' => Ok(self.take(1, Token::OpenParen)),
            ')' => Ok(self.take(1, Token::CloseParen)),
            '{' => Ok(self.take(1, Token::OpenBrace)),
            '}' => Ok(self.take(1, Token::CloseBrace)),
            ',' => Ok(self.take(1, Token::Comma)),
            '!' if self.rest().starts_with("!=") => Ok(self.take(2, Token::Differs)),
            '!' => Ok(self.take(1, Token::Not)),
            '=' => self.doubled("==", Token::Equals),
            '&' => self.doubled("&&", Token::And),
            '|' => self.doubled("||", Token::Or),
            '"' | '\'' => self.string(first),
            _ if self.after_label => self.operator(),
            _ => self.word(),
        }
    }

    fn doubled(
        &mut self,
        operator: &'static str,
        token: Token<'a>,
    ) -> Result<Token<'a>, ParseError> {
        if self.rest().starts_with(operator) {
            return Ok(self.take(2, token));
        }
        Err(self.expected(operator))
    }

    fn string(&mut self, quote: char) -> Result<Token<'a>, ParseError> {
        let content = &self.rest()[1..];
        let Some(length) = content.find(quote) else {
            return Err(ParseError::UnterminatedString { at: self.at });
        };
        Ok(self.take(length + 2, Token::Text(&content[..length])))
    }

    fn operator(&mut self) -> Result<Token<'a>, ParseError> {
        let operators: [(&[&str], Token<'a>); 5] = [
            (&["contains"], Token::Contains),
            (&["starts", "with"], Token::StartsWith),
            (&["ends", "with"], Token::EndsWith),
            (&["not", "in"], Token::NotIn),
            (&["in"], Token::In),
        ];
        for (words, token) in operators {
            if let Some(length) = self.match_words(words) {
                return Ok(self.take(length, token));
            }
        }
        Err(self.expected(OPERATOR))
    }

    /// Returns the length of an operator of one or two words. The blank between two words is optional.
    fn match_words(&self, words: &[&str]) -> Option<usize> {
        let mut rest = self.rest();
        for (i, word) in words.iter().enumerate() {
            if i > 0 {
                rest = rest.trim_start_matches(is_blank);
            }
            rest = rest.strip_prefix(word)?;
        }
        let ends = !rest.starts_with(is_label_char);
        ends.then(|| self.rest().len() - rest.len())
    }

    fn word(&mut self) -> Result<Token<'a>, ParseError> {
        if self.rest().starts_with("has(") {
            self.at += 4;
            self.skip_blanks();
            let label = self.label("a label")?;
            self.close()?;
            return Ok(Token::Has(label));
        }
        for (call, token) in [("all(", Token::All), ("global(", Token::Global)] {
            if self.rest().starts_with(call) {
                self.at += call.len();
                self.close()?;
                return Ok(token);
            }
        }
        self.label(EXPRESSION).map(Token::Label)
    }

    fn label(&mut self, expected: &'static str) -> Result<&'a str, ParseError> {
        let rest = self.rest();
        let length = rest.find(|c| !is_label_char(c)).unwrap_or(rest.len());
        if length == 0 {
            return Err(self.expected(expected));
        }
        if length > MAX_LABEL_LENGTH {
            return Err(ParseError::LabelTooLong { at: self.at, length });
        }
        self.at += length;
        Ok(&rest[..length])
    }

    fn close(&mut self) -> Result<(), ParseError> {
        self.skip_blanks();
        if !self.rest().starts_with(')') {
            return Err(self.expected(")"));
        }
        self.at += 1;
        Ok(())
    }

    fn take(&mut self, length: usize, token: Token<'a>) -> Token<'a> {
        self.at += length;
        token
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start_matches(is_blank).len();
    }

    fn expected(&self, expected: &'static str) -> ParseError {
        ParseError::expected(self.text, self.at, expected)
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

fn is_label_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-')
}
