//! Plain aligned tables for people.

/// Lines of cells under their headings, padded to columns. What would break a line or move the cursor is shown as
/// an escape.
pub(super) fn render<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<_> = std::iter::once(headings.map(str::to_owned))
        .chain(rows.iter().cloned())
        .map(|row| row.map(|cell| visible(&cell)))
        .collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let line: String = widths
            .iter()
            .zip(row)
            .map(|(width, cell)| format!("{cell:width$}  "))
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The text without control characters.
pub(super) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            ["16/B374D848:0".to_owned(), "öl".to_owned(), "x".to_owned()],
            ["0/1:0".to_owned(), String::new(), String::new()],
        ];
        assert_eq!(
            render(["KEY", "ID", "END"], &rows),
            "KEY            ID  END\n16/B374D848:0  öl  x\n0/1:0\n"
        );
    }

    #[test]
    fn a_cell_cannot_break_the_table_or_move_the_cursor() {
        assert_eq!(
            render(["A"], &[["x\ny\u{1b}[2J".to_owned()]]),
            "A\nx\\ny\\u{1b}[2J\n"
        );
    }
}
