// What the terminal that stdout goes to can show.
#pragma once

namespace kvcc::cli {

/// Columns of the terminal; of what is none, $COLUMNS where it is a number from 40 to 1000, else 80.
int stdout_columns();
/// Whether the locale ($LC_ALL, $LC_CTYPE or $LANG, the first that is set) is of UTF-8.
bool shows_unicode();
/// Whether stdout is a terminal and $NO_COLOR is unset or empty, and $TERM is not "dumb".
bool shows_colors();

}  // namespace kvcc::cli
