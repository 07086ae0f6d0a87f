// SPDX-License-Identifier: Apache-2.0
//! Extracts the kernel from a bzImage (Documentation/arch/x86/boot.rst).

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::cmd;

const SETUP_SECTORS: usize = 0x1f1;
const SIGNATURE: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;

/// Compression formats of a kernel: magic bytes, program, and the number of bytes that the kernel's
/// build appends (the size, if the format does not contain it).
const FORMATS: [(&[u8], &str, usize); 3] =
    [(b"\xfd7zXZ\0", "xz", SIZE), (b"\x28\xb5\x2f\xfd", "zstd", SIZE), (b"\x1f\x8b", "gzip", 0)];
const SIZE: usize = 4;

/// Writes the uncompressed kernel.
pub(crate) fn unpack(packed: &Path, unpacked: &Path) -> Result<()> {
    let image = fs::read(packed).with_context(|| format!("read {}", packed.display()))?;
    let payload = payload(&image)?;
    let (program, data) = recognize(payload)?;
    let mut input = tempfile::tempfile()?;
    input.write_all(data)?;
    input.rewind()?;
    let mut unpack = cmd::command(program);
    unpack.arg("-dc").stdin(input).stdout(File::create(unpacked)?);
    cmd::run(&mut unpack)?;
    let start = fs::read(unpacked)?;
    ensure!(start.starts_with(b"\x7fELF"), "{} is no program", unpacked.display());
    Ok(())
}

fn payload(image: &[u8]) -> Result<&[u8]> {
    let signature = image.get(SIGNATURE..SIGNATURE + 4);
    ensure!(signature == Some(b"HdrS"), "the kernel image has no setup header");
    let sectors = match image[SETUP_SECTORS] {
        0 => 4,
        count => usize::from(count),
    };
    let start = (sectors + 1) * SECTOR + number(image, PAYLOAD_OFFSET)?;
    let end = start + number(image, PAYLOAD_LENGTH)?;
    image.get(start..end).context("the kernel image is shorter than its header says")
}

fn number(image: &[u8], at: usize) -> Result<usize> {
    let bytes = image.get(at..at + 4).context("the kernel image is truncated")?;
    Ok(u32::from_le_bytes(bytes.try_into()?).try_into()?)
}

fn recognize(payload: &[u8]) -> Result<(&'static str, &[u8])> {
    for (magic, program, appended) in FORMATS {
        if payload.starts_with(magic) {
            return Ok((program, &payload[..payload.len().saturating_sub(appended)]));
        }
    }
    bail!("unknown compression of the kernel image: {:02x?}", payload.get(..6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_extracted() {
        let mut image = vec![0; 3 * SECTOR];
        image[SETUP_SECTORS] = 1;
        image[SIGNATURE..SIGNATURE + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET] = 16;
        image[PAYLOAD_LENGTH] = 11;
        image[2 * SECTOR + 16..][..11].copy_from_slice(b"\xfd7zXZ\0Asize");
        assert_eq!(recognize(payload(&image).unwrap()).unwrap(), ("xz", &b"\xfd7zXZ\0A"[..]));
        image.truncate(2 * SECTOR + 20);
        assert!(payload(&image).is_err());
        assert!(payload(b"short").is_err());
        assert!(recognize(b"plain").is_err());
    }
}
