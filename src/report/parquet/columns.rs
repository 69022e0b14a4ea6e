//! Columns of repeated strings, as Arrow dictionaries.

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int32Array, StringArray};
use arrow_schema::{ArrowError, DataType};
use std::sync::Arc;

/// The type of such a column. Readers without support for dictionaries see strings.
pub(super) fn text_type() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// A column of `keys` into `values`; `None` is null, and so is a key without a value.
pub(super) fn text(
    keys: impl Iterator<Item = Option<usize>>,
    values: &Arc<StringArray>,
) -> Result<ArrayRef, ArrowError> {
    use arrow_array::Array;
    let known = values.len();
    let keys: Int32Array = keys
        .map(|key| i32::try_from(key.filter(|&key| key < known)?).ok())
        .collect();
    let column = DictionaryArray::<Int32Type>::try_new(keys, Arc::clone(values) as ArrayRef)?;
    Ok(Arc::new(column))
}

/// Values of a column, by number.
pub(super) fn values<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Arc<StringArray> {
    Arc::new(StringArray::from_iter_values(texts))
}
