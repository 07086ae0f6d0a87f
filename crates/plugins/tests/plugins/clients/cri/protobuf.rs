// SPDX-License-Identifier: Apache-2.0
//! The part of the protobuf wire format that CRI's messages use: numbers, strings and nested
//! messages.

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// A message to send, built field by field. A map is a repeated message of key (1) and value (2).
#[derive(Clone, Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn number(mut self, field: u64, value: u64) -> Message {
        self.varint(field << 3 | VARINT);
        self.varint(value);
        self
    }

    pub fn text(self, field: u64, value: &str) -> Message {
        self.message(field, &Message(value.as_bytes().to_vec()))
    }

    pub fn message(mut self, field: u64, value: &Message) -> Message {
        self.varint(field << 3 | BYTES);
        self.varint(value.0.len() as u64);
        self.0.extend(&value.0);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// A received message. Absent fields have their default value.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Reader<'a> {
    pub fn number(&self, field: u64) -> u64 {
        let found = self.fields().into_iter().find(|(number, _)| *number == field);
        match found {
            Some((_, Value::Number(value))) => value,
            _ => 0,
        }
    }

    pub fn text(&self, field: u64) -> String {
        String::from_utf8_lossy(self.bytes(field).unwrap_or_default()).into_owned()
    }

    pub fn bytes(&self, field: u64) -> Option<&'a [u8]> {
        self.all(field).into_iter().next()
    }

    /// Returns all values of a repeated field.
    pub fn all(&self, field: u64) -> Vec<&'a [u8]> {
        let values = self.fields().into_iter().filter(|(number, _)| *number == field);
        let bytes = |value| match value {
            Value::Bytes(bytes) => Some(bytes),
            Value::Number(_) => None,
        };
        values.filter_map(|(_, value)| bytes(value)).collect()
    }

    fn fields(&self) -> Vec<(u64, Value<'a>)> {
        let (mut rest, mut found) = (self.0, Vec::new());
        while !rest.is_empty() {
            let tag = varint(&mut rest);
            let value = match tag & 7 {
                VARINT => Value::Number(varint(&mut rest)),
                FIXED64 => Value::Bytes(take(&mut rest, 8)),
                BYTES => {
                    let length = varint(&mut rest);
                    Value::Bytes(take(&mut rest, length))
                }
                FIXED32 => Value::Bytes(take(&mut rest, 4)),
                other => panic!("wire type {other} is not valid in protobuf 3"),
            };
            found.push((tag >> 3, value));
        }
        found
    }
}

fn varint(rest: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = take(rest, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> &'a [u8] {
    let length = usize::try_from(length).expect("a message fits into memory");
    let (taken, left) = rest.split_at_checked(length).expect("the message is complete");
    *rest = left;
    taken
}

#[test]
fn protobuf_fields_encoded_decode_to_same_values() {
    // Example from the protobuf encoding documentation: field 1 is 150.
    assert_eq!(Message::default().number(1, 150).bytes(), [0x08, 0x96, 0x01]);
    let inner = Message::default().text(2, "testing").number(3, 1 << 40);
    let outer = Message::default().message(15, &inner).message(15, &Message::default());
    let read = Reader(outer.bytes());
    assert_eq!(read.all(15).len(), 2);
    let first = Reader(read.bytes(15).expect("there are two"));
    assert_eq!((first.text(2).as_str(), first.number(3), first.number(4)), ("testing", 1 << 40, 0));
}
