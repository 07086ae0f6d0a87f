// SPDX-License-Identifier: Apache-2.0
//! Copies of the database: the backup, and a new file in place of a deleted or damaged one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::notify::beside;
use super::schema;
use crate::error::Cause;

/// Added to all revisions of a restored backup, so that they exceed all revisions that any process has seen.
const REVISION_GAP: i64 = 1 << 32;

/// Returns the path of the backup.
pub(super) fn backup_path(database: &Path) -> PathBuf {
    beside(database, ".backup")
}

/// Writes a copy of the database to a path and replaces the file there.
pub(super) fn write(connection: &Connection, path: &Path) -> Result<(), Cause> {
    let fresh = beside(path, ".new");
    remove(&fresh)?;
    // SQLite writes into the empty file, which has the right mode.
    schema::open_private(&fresh)?;
    let written = connection.execute("VACUUM INTO ?1", [text(&fresh)?]).map_err(Cause::from);
    written.and_then(|_| Ok(place(&fresh, path)?)).inspect_err(|_| drop(fs::remove_file(&fresh)))
}

/// Writes a copy of a deleted database, which is still open, to its old path.
pub(super) fn write_deleted(connection: &Connection, database: &Path) -> Result<(), Cause> {
    move_journals_away(database)?;
    write(connection, database)
}

/// Replaces a damaged or missing database by its backup. The caller holds the lock of the database.
pub(super) fn restore(database: &Path, damage: &Cause) -> Result<(), Cause> {
    let backup = backup_path(database);
    let (shown, aside) = (database.display(), damaged(database));
    if let Err(cause) = check(&backup) {
        let aside = aside.display();
        return Err(format!(
            "the file is damaged ({damage}), and there is no valid backup ({}: {cause}): stop all agents of this \
             machine, run `mv {shown} {aside}`, and start them again with --net-config",
            backup.display()
        )
        .into());
    }
    let fresh = beside(database, ".new");
    remove(&fresh)?;
    let rebased = || -> Result<(), Cause> {
        io::copy(&mut File::open(&backup)?, &mut schema::open_private(&fresh)?)?;
        let mut connection = Connection::open_with_flags(&fresh, schema::FLAGS)?;
        schema::rebase(&mut connection, REVISION_GAP)?;
        // Restarts the times to live, as after a boot, because those of the backup are old.
        connection.execute("UPDATE head SET boot = ''", ())?;
        connection.close().map_err(|(_, error)| error)?;
        remove(&beside(&fresh, "-journal"))?;
        Ok(())
    };
    rebased().inspect_err(|_| drop(fs::remove_file(&fresh)))?;
    move_journals_away(database)?;
    match fs::rename(database, &aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    place(&fresh, database)?;
    let aside = aside.display();
    tracing::warn!(store = %shown, cause = %damage, damaged = %aside, "store damaged, backup restored");
    Ok(())
}

/// Returns the identity and the newest revision of a copy, if it is a valid database of podwire.
pub(super) fn check(path: &Path) -> Result<(String, i64), Cause> {
    // SQLite would create a missing file.
    fs::metadata(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    if !schema::is_initialized(&connection)? {
        return Err("the file is empty".into());
    }
    schema::verify(&connection)?;
    let id = schema::id(&connection)?;
    Ok((id, connection.query_row("SELECT revision FROM head", (), |row| row.get(0))?))
}

/// Moves the journals of the database away, because SQLite would apply them to the new file.
fn move_journals_away(database: &Path) -> io::Result<()> {
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
