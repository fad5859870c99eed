//! The pages of one column, checked before their values are decoded.
//!
//! A page says how many values it holds and how large it is once it is unpacked, and the crate that reads Parquet asks for as much
//! memory as it says. So pages come from it as they lie in the file; here each is held to what its column said and to what its
//! bytes can hold, and only then unpacked.

use std::fs::File;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use snap::raw::{Decoder, decompress_len};

/// How values of a column may be written; others nobody uses for numbers, and they bring lengths of their own.
const ENCODINGS: [Encoding; 6] = [
    Encoding::PLAIN,
    Encoding::PLAIN_DICTIONARY,
    Encoding::RLE_DICTIONARY,
    Encoding::RLE,
    Encoding::DELTA_BINARY_PACKED,
    Encoding::BYTE_STREAM_SPLIT,
];

/// Snappy makes at most 64 bytes of three.
const SNAPPY: usize = 22;

/// Gives the pages of one column in one row group, unpacked.
pub(super) struct Pages {
    packed: Box<dyn PageReader>,
    /// Unpacks them, where the column is compressed.
    snappy: Option<Decoder>,
    /// Values that may still come, as the column says.
    left: u64,
    /// Bytes of a value.
    bytes: usize,
    /// Whether its dictionary came.
    has_dictionary: bool,
}

impl Pages {
    /// The pages of a column that is compressed with snappy or not at all, with values of so many bytes.
    pub(super) fn open(file: &Arc<File>, column: &ColumnChunkMetaData, bytes: usize) -> Result<Self> {
        let as_they_lie = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        // The number of rows is only asked where a file has an index of its pages, which is not read.
        let packed = SerializedPageReader::new(file.clone(), &as_they_lie, 0, None)?;
        let values = u64::try_from(column.num_values())?;
        Ok(Self::of(Box::new(packed), column.compression() == Compression::SNAPPY, values, bytes))
    }

    fn of(packed: Box<dyn PageReader>, snappy: bool, values: u64, bytes: usize) -> Self {
        Self { packed, snappy: snappy.then(Decoder::new), left: values, bytes, has_dictionary: false }
    }

    /// Unpacks what stands behind the first `bare` bytes.
    fn unpack(&mut self, packed: &[u8], bare: usize) -> Result<Vec<u8>> {
        let Some((bare, packed)) = packed.split_at_checked(bare) else {
            return Err(error("a page is shorter than the levels that it says it has"));
        };
        let mut bytes = bare.to_vec();
        let Some(decoder) = self.snappy.as_mut().filter(|_| !packed.is_empty()) else {
            bytes.extend_from_slice(packed);
            return Ok(bytes);
        };
        let length = decompress_len(packed).map_err(unpacking)?;
        if length > SNAPPY * packed.len() {
            let most = SNAPPY * packed.len();
            return Err(error(format!(
                "a page says that it has {length} bytes when unpacked, its {} bytes can have {most} at most",
                packed.len()
            )));
        }
        bytes.resize(bare.len() + length, 0);
        decoder.decompress(packed, &mut bytes[bare.len()..]).map_err(unpacking)?;
        Ok(bytes)
    }

    fn next_page(&mut self) -> Result<Option<Page>> {
        let Some(mut page) = self.packed.get_next_page()? else { return Ok(None) };
        if !ENCODINGS.contains(&page.encoding()) {
            return Err(error(format!(
                "a page is encoded as {}; expected one of {ENCODINGS:?}",
                page.encoding()
            )));
        }
        match &mut page {
            Page::DictionaryPage { buf, .. } | Page::DataPage { buf, .. } => {
                if self.snappy.is_some() {
                    *buf = self.unpack(buf, 0)?.into();
                }
            }
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, is_compressed, .. } => {
                if self.snappy.is_some() && *is_compressed {
                    let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                    *buf = self.unpack(buf, levels)?.into();
                }
            }
        }
        let (values, held) = (u64::from(page.num_values()), page.buffer().len() / self.bytes);
        if page.is_dictionary_page() {
            if values > held as u64 {
                return Err(error(format!(
                    "a dictionary says that it has {values} values, its bytes hold {held}"
                )));
            }
            if std::mem::replace(&mut self.has_dictionary, true) {
                return Err(error("a column has a second dictionary"));
            }
            return Ok(Some(page));
        }
        let by_dictionary = [Encoding::PLAIN_DICTIONARY, Encoding::RLE_DICTIONARY].contains(&page.encoding());
        if by_dictionary && !self.has_dictionary {
            return Err(error("a page goes by a dictionary that its column does not have"));
        }
        self.left = self.left.checked_sub(values).ok_or_else(|| {
            error(format!("a page says that it has {values} values, its column has {} left", self.left))
        })?;
        Ok(Some(page))
    }
}

fn unpacking(source: snap::Error) -> ParquetError {
    ParquetError::External(Box::new(source))
}

fn error(reason: impl Into<String>) -> ParquetError {
    ParquetError::General(reason.into())
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.next_page()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.packed.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.next_page().map(drop)
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.packed.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages as if they lay in a file.
    struct Lying(Vec<Page>);

    impl Iterator for Lying {
        type Item = Result<Page>;

        fn next(&mut self) -> Option<Self::Item> {
            self.get_next_page().transpose()
        }
    }

    impl PageReader for Lying {
        fn get_next_page(&mut self) -> Result<Option<Page>> {
            Ok(self.0.pop())
        }

        fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
            unreachable!()
        }

        fn skip_next_page(&mut self) -> Result<()> {
            unreachable!()
        }
    }

    fn dictionary(bytes: Vec<u8>, num_values: u32) -> Page {
        Page::DictionaryPage { buf: bytes.into(), num_values, encoding: Encoding::PLAIN, is_sorted: false }
    }

    fn data(bytes: Vec<u8>, num_values: u32, encoding: Encoding) -> Page {
        let (def_level_encoding, rep_level_encoding) = (Encoding::RLE, Encoding::RLE);
        Page::DataPage {
            buf: bytes.into(),
            num_values,
            encoding,
            def_level_encoding,
            rep_level_encoding,
            statistics: None,
        }
    }

    /// A page of the second version: three bytes of levels, which are never compressed, and the rest.
    fn second(bytes: Vec<u8>, rep_levels_byte_len: u32, is_compressed: bool) -> Page {
        Page::DataPageV2 {
            buf: bytes.into(),
            num_values: 1,
            encoding: Encoding::PLAIN,
            num_nulls: 0,
            num_rows: 1,
            def_levels_byte_len: 1,
            rep_levels_byte_len,
            is_compressed,
            statistics: None,
        }
    }

    /// Ten values of four bytes are announced.
    fn read(pages: impl Into<Vec<Page>>, snappy: bool) -> Result<Vec<Vec<u8>>> {
        let mut pages = pages.into();
        pages.reverse();
        Pages::of(Box::new(Lying(pages)), snappy, 10, 4).map(|page| Ok(page?.buffer().to_vec())).collect()
    }

    fn refused(page: Page, snappy: bool) -> String {
        read([page], snappy).unwrap_err().to_string()
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        snap::raw::Encoder::new().compress_vec(bytes).unwrap()
    }

    #[test]
    fn sound_pages_are_unpacked() {
        let plain = || data(vec![7; 40], 10, Encoding::PLAIN);
        assert_eq!(read([dictionary(vec![1; 8], 2), plain()], false).unwrap(), [vec![1; 8], vec![7; 40]]);
        let pages = [dictionary(packed(&[1; 8]), 2), data(packed(&[7; 5000]), 10, Encoding::RLE_DICTIONARY)];
        assert_eq!(read(pages, true).unwrap(), [vec![1; 8], vec![7; 5000]]);
        let levels = [vec![1, 2, 3], packed(&[7; 40])].concat();
        let whole = [vec![1, 2, 3], vec![7; 40]].concat();
        assert_eq!(read([second(levels.clone(), 2, true)], true).unwrap(), [&whole[..]]);
        assert_eq!(read([second(levels.clone(), 2, false)], true).unwrap(), [&levels[..]]);
        // Nothing but levels: every value is missing.
        assert_eq!(read([second(vec![1, 2, 3], 2, true)], true).unwrap(), [[1, 2, 3]]);
    }

    #[test]
    fn more_than_a_page_can_hold_is_refused() {
        let words = refused(dictionary(vec![0; 8], 1_900_000_000), false);
        assert!(
            words.contains("a dictionary says that it has 1900000000 values, its bytes hold 2"),
            "{words}"
        );
        assert!(refused(dictionary(packed(&[0; 8]), 3), true).contains("its bytes hold 2"));
        let words = refused(data(vec![0; 40], 11, Encoding::PLAIN), false);
        assert!(words.contains("a page says that it has 11 values, its column has 10 left"), "{words}");
        let six = || data(vec![0; 24], 6, Encoding::PLAIN);
        assert!(read([six(), six()], false).unwrap_err().to_string().contains("its column has 4 left"));
        // Two gigabytes, as the first five bytes say.
        let words = refused(data(vec![0xff, 0xff, 0xff, 0xff, 0x07, 0], 1, Encoding::PLAIN), true);
        assert!(words.contains("a page says that it has 2147483647 bytes when unpacked"), "{words}");
        let words = refused(data(vec![0; 40], 1, Encoding::DELTA_LENGTH_BYTE_ARRAY), false);
        assert!(words.contains("a page is encoded as DELTA_LENGTH_BYTE_ARRAY"), "{words}");
        for encoding in [Encoding::RLE_DICTIONARY, Encoding::PLAIN_DICTIONARY] {
            let words = refused(data(vec![0; 40], 1, encoding), false);
            assert!(words.contains("a dictionary that its column does not have"), "{words}");
        }
        let twice = read([dictionary(vec![0; 8], 2), dictionary(vec![0; 8], 2)], false);
        assert!(twice.unwrap_err().to_string().contains("a second dictionary"));
        let words = refused(second(vec![0; 4], 9, true), true);
        assert!(words.contains("shorter than the levels"), "{words}");
    }

    /// The bound of what snappy makes of its bytes is the format's: the most that its encoder reaches lies below.
    #[test]
    fn the_best_that_snappy_does_is_taken() {
        let best = packed(&[0; 1 << 20]);
        assert!(best.len() * 20 < 1 << 20, "{}", best.len());
        assert_eq!(read([data(best, 1, Encoding::PLAIN)], true).unwrap(), [vec![0; 1 << 20]]);
    }
}
