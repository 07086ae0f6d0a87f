// SPDX-License-Identifier: Apache-2.0
//! Detects static programs: a dynamic one has a program header of type PT_INTERP.

use anyhow::{Context, Result, ensure};

const PT_INTERP: u32 = 3; // elf.h
const PHDR_OFFSET_AT: usize = 32; // Elf64_Ehdr.e_phoff
const PHDR_SIZE_AT: usize = 54; // Elf64_Ehdr.e_phentsize
const PHDR_COUNT_AT: usize = 56; // Elf64_Ehdr.e_phnum

/// True for a 64-bit little-endian program without an interpreter.
pub(crate) fn is_static(file: &[u8]) -> Result<bool> {
    ensure!(file.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF file");
    let start = usize::try_from(u64::from_le_bytes(bytes(file, PHDR_OFFSET_AT)?))?;
    let size = usize::from(u16::from_le_bytes(bytes(file, PHDR_SIZE_AT)?));
    let count = usize::from(u16::from_le_bytes(bytes(file, PHDR_COUNT_AT)?));
    for header in 0..count {
        let kind = u32::from_le_bytes(bytes(file, start.saturating_add(header * size))?);
        if kind == PT_INTERP {
            return Ok(false);
        }
    }
    Ok(true)
}

fn bytes<const N: usize>(file: &[u8], at: usize) -> Result<[u8; N]> {
    let rest = file.get(at..).and_then(|rest| rest.first_chunk());
    rest.copied().context("the ELF file is truncated")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreter_is_detected() {
        fn program(kinds: &[u32]) -> Vec<u8> {
            let mut file = b"\x7fELF\x02\x01".to_vec();
            file.resize(64, 0);
            file[PHDR_OFFSET_AT] = 64;
            file[PHDR_SIZE_AT] = 56;
            file[PHDR_COUNT_AT] = u8::try_from(kinds.len()).unwrap();
            for kind in kinds {
                file.extend(kind.to_le_bytes());
                file.extend([0; 52]);
            }
            file
        }
        assert!(is_static(&program(&[1, 2])).unwrap());
        assert!(!is_static(&program(&[6, PT_INTERP, 1])).unwrap());
        assert!(is_static(&program(&[1])[..64]).is_err());
        assert!(is_static(b"#!/bin/sh").is_err());
    }
}
