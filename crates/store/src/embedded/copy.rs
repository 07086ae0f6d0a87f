// SPDX-License-Identifier: Apache-2.0
//! Valid copies of the database: the backup beside it, and a new file in the place of one that was deleted or
//! damaged.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::notify::beside;
use super::schema;
use crate::error::Cause;

/// Added to all revisions of a restored backup: more than any process has seen of the database since.
const LATER: i64 = 1 << 32;

/// The path of the backup.
pub fn backup(database: &Path) -> PathBuf {
    beside(database, ".backup")
}

/// Writes a copy of what the connection reads to a path. The copy replaces the file there.
pub fn write(connection: &Connection, path: &Path) -> Result<(), Cause> {
    let fresh = beside(path, ".new");
    remove(&fresh)?;
    // SQLite writes into an empty file, which has the right mode.
    schema::private(&fresh)?;
    let written = connection.execute("VACUUM INTO ?1", [text(&fresh)?]).map_err(Cause::from);
    written.and_then(|_| Ok(place(&fresh, path)?)).inspect_err(|_| drop(fs::remove_file(&fresh)))
}

/// Writes a copy of what the connection reads to the path of the database, where no file is.
pub fn write_deleted(connection: &Connection, database: &Path) -> Result<(), Cause> {
    set_journals_aside(database)?;
    write(connection, database)
}

/// Puts the backup in the place of a damaged or missing database. The caller holds the lock of the database.
pub fn restore(database: &Path, damage: &Cause) -> Result<(), Cause> {
    let backup = backup(database);
    let (shown, aside) = (database.display(), damaged(database));
    if let Err(cause) = check(&backup) {
        let aside = aside.display();
        return Err(format!(
            "it is damaged ({damage}), and there is no valid backup ({}: {cause}): stop all agents of this machine, \
             run `mv {shown} {aside}`, and start them again, with --net-config",
            backup.display()
        )
        .into());
    }
    let fresh = beside(database, ".new");
    remove(&fresh)?;
    let rebased = || -> Result<(), Cause> {
        io::copy(&mut File::open(&backup)?, &mut schema::private(&fresh)?)?;
        let mut connection = Connection::open_with_flags(&fresh, schema::FLAGS)?;
        schema::rebase(&mut connection, LATER)?;
        // Times to live start again, as after a boot: those of the backup are of an earlier moment.
        connection.execute("UPDATE head SET boot = ''", ())?;
        connection.close().map_err(|(_, error)| error)?;
        remove(&beside(&fresh, "-journal"))?;
        Ok(())
    };
    rebased().inspect_err(|_| drop(fs::remove_file(&fresh)))?;
    set_journals_aside(database)?;
    match fs::rename(database, &aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    place(&fresh, database)?;
    let aside = aside.display();
    tracing::warn!(store = %shown, cause = %damage, damaged = %aside, "store damaged, backup restored");
    Ok(())
}

/// Returns the identity and the newest revision of a copy, if it is a valid database of ours.
pub fn check(path: &Path) -> Result<(String, i64), Cause> {
    // SQLite would create what is missing.
    fs::metadata(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    if !schema::is_known(&connection)? {
        return Err("it is empty".into());
    }
    schema::verify(&connection)?;
    let id = schema::id(&connection)?;
    Ok((id, connection.query_row("SELECT revision FROM head", (), |row| row.get(0))?))
}

/// A journal belongs to the file that it was written for: another file in that place must not get it.
fn set_journals_aside(database: &Path) -> io::Result<()> {
    let aside = damaged(database);
    for ending in ["-journal", "-wal", "-shm"] {
        let journal = beside(database, ending);
        match fs::metadata(&journal) {
            Ok(file) if file.len() > 0 => fs::rename(journal, beside(&aside, ending))?,
            Ok(_) => remove(&journal)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn damaged(database: &Path) -> PathBuf {
    beside(database, ".damaged")
}

/// Gives a complete file its name, durably.
fn place(fresh: &Path, path: &Path) -> io::Result<()> {
    File::open(fresh)?.sync_all()?;
    fs::rename(fresh, path)?;
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => File::open(dir)?.sync_all(),
        _ => Ok(()),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn text(path: &Path) -> Result<&str, Cause> {
    path.to_str().ok_or_else(|| format!("the path {} is not UTF-8", path.display()).into())
}
