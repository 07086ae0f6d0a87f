// SPDX-License-Identifier: Apache-2.0
//! Builds the expression tree from the tokens.

use std::collections::BTreeSet;

use crate::expr::{Expr, Test};
use crate::lexer::{Positioned, Token, tokens};

/// Nested parentheses that are accepted. Deeper nesting could exhaust the stack.
const MAX_DEPTH: usize = 100;

/// Error for a text that is not a selector. Positions count bytes from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("at position {at}: expected {expected}, found {found}")]
    Expected { at: usize, expected: &'static str, found: String },
    #[error("at position {at}: string without closing quote")]
    UnterminatedString { at: usize },
    #[error("at position {at}: label of {length} characters; {max} are allowed", max = crate::MAX_LABEL_LENGTH)]
    LabelTooLong { at: usize, length: usize },
    #[error("at position {at}: more than {MAX_DEPTH} nested parentheses")]
    TooDeep { at: usize },
}

impl ParseError {
    pub(crate) fn expected(text: &str, at: usize, expected: &'static str) -> Self {
        let rest = &text[at..];
        let found = match rest.split_ascii_whitespace().next() {
            None => "the end".to_owned(),
            Some(word) => format!("{:?}", word.chars().take(20).collect::<String>()),
        };
        Self::Expected { at, expected, found }
    }
}

pub(crate) fn parse(text: &str) -> Result<Expr, ParseError> {
    let tokens = tokens(text)?;
    if tokens.len() == 1 {
        return Ok(Expr::All);
    }
    let mut parser = Parser { text, tokens: &tokens, depth: 0 };
    let expr = parser.or()?;
    match parser.peek() {
        Token::End => Ok(expr),
        _ => Err(parser.expected("&&, || or the end")),
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Tokens not read yet. The last one is `End`, which is never removed.
    tokens: &'a [Positioned<'a>],
    depth: usize,
}

impl<'a> Parser<'a> {
    fn or(&mut self) -> Result<Expr, ParseError> {
        self.list(&Token::Or, Self::and, Expr::Or)
    }

    fn and(&mut self) -> Result<Expr, ParseError> {
        self.list(&Token::And, Self::operation, Expr::And)
    }

    fn list(
        &mut self,
        separator: &Token<'a>,
        item: fn(&mut Self) -> Result<Expr, ParseError>,
        join: fn(Vec<Expr>) -> Expr,
    ) -> Result<Expr, ParseError> {
        let first = item(self)?;
        if self.peek() != separator {
            return Ok(first);
        }
        let mut list = vec![first];
        while self.peek() == separator {
            self.advance();
            list.push(item(self)?);
        }
        Ok(join(list))
    }

    fn operation(&mut self) -> Result<Expr, ParseError> {
        let mut negated = false;
        while *self.peek() == Token::Not {
            self.advance();
            negated = !negated;
        }
        let expr = match self.peek().clone() {
            Token::All => self.advance_to(Expr::All),
            Token::Global => self.advance_to(Expr::Global),
            Token::Has(label) => self.advance_to(Expr::Has(label.to_owned())),
            Token::Label(label) => {
                self.advance();
                Expr::Label(label.to_owned(), self.test()?)
            }
            Token::OpenParen => self.parentheses()?,
            _ => return Err(self.expected("a label, has(…), all(), global(), ! or (")),
        };
        Ok(if negated { Expr::Not(Box::new(expr)) } else { expr })
    }

    fn parentheses(&mut self) -> Result<Expr, ParseError> {
        if self.depth == MAX_DEPTH {
            return Err(ParseError::TooDeep { at: self.tokens[0].0 });
        }
        self.advance();
        self.depth += 1;
        let expr = self.or()?;
        self.depth -= 1;
        if *self.peek() != Token::CloseParen {
            return Err(self.expected("&&, || or )"));
        }
        self.advance();
        Ok(expr)
    }

    fn test(&mut self) -> Result<Test, ParseError> {
        let operator = self.peek().clone();
        let with_text = match operator {
            Token::Equals => Test::Equals,
            Token::Differs => Test::Differs,
            Token::Contains => Test::Contains,
            Token::StartsWith => Test::StartsWith,
            Token::EndsWith => Test::EndsWith,
            Token::In => {
                self.advance();
                return self.set().map(Test::In);
            }
            Token::NotIn => {
                self.advance();
                return self.set().map(Test::NotIn);
            }
            _ => {
                let operators = "==, !=, in, not in, contains, starts with or ends with";
                return Err(self.expected(operators));
            }
        };
        self.advance();
        let Token::Text(text) = *self.peek() else {
            return Err(self.expected("a string in quotes"));
        };
        self.advance();
        Ok(with_text(text.to_owned()))
    }

    /// Parses `{"a", "b"}`. As in Calico, the set may be empty and may end with a comma.
    fn set(&mut self) -> Result<BTreeSet<String>, ParseError> {
        if *self.peek() != Token::OpenBrace {
            return Err(self.expected("{"));
        }
        self.advance();
        let mut set = BTreeSet::new();
        while let Token::Text(text) = *self.peek() {
            self.advance();
            set.insert(text.to_owned());
            if *self.peek() != Token::Comma {
                break;
            }
            self.advance();
        }
        if *self.peek() != Token::CloseBrace {
            return Err(self.expected("a string in quotes or }"));
        }
        self.advance();
        Ok(set)
    }

    fn peek(&self) -> &Token<'a> {
        &self.tokens[0].1
    }

    fn advance(&mut self) {
        if self.tokens.len() > 1 {
            self.tokens = &self.tokens[1..];
        }
    }

    fn advance_to(&mut self, expr: Expr) -> Expr {
        self.advance();
        expr
    }

    fn expected(&self, expected: &'static str) -> ParseError {
        ParseError::expected(self.text, self.tokens[0].0, expected)
    }
}
