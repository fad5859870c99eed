//! Settings from TOML. The `toml` crate parses the text; what follows fills in the structs. The crate's own reader would do
//! that, too, but is compiled for every struct four times (tables, lists, dates, values with their place), which made a fifth of
//! this library's machine code. Settings are tables: here every struct is compiled once.

use std::fmt;
use std::ops::Range;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong with a text, and where.
#[derive(Debug)]
pub(crate) struct Mistake {
    message: String,
    place: Option<Range<usize>>,
}

impl Mistake {
    /// What is wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What is wrong, with its line and column in the text that was read.
    pub fn within(&self, text: &str) -> String {
        let Some(before) = self.place.as_ref().and_then(|place| text.get(..place.start)) else {
            return self.message.clone();
        };
        let (line, start) = (before.matches('\n').count(), before.rfind('\n').map_or(0, |at| at + 1));
        let column = before[start..].chars().count() + 1;
        let content = text[start..].lines().next().unwrap_or_default();
        format!("line {}, column {column}: {}\n    {content}", line + 1, self.message)
    }

    /// The same mistake; where no place is known yet, it is this one.
    fn at(mut self, place: Range<usize>) -> Self {
        self.place.get_or_insert(place);
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Mistake {}

impl Error for Mistake {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), place: None }
    }
}

/// Settings from a text.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    let parsed = DeTable::parse(text);
    let table = parsed.map_err(|e| Mistake { message: e.message().into(), place: e.span() })?;
    let place = table.span();
    T::deserialize(Reader { value: &DeValue::Table(table.into_inner()), place })
}

/// A value and its place in the text.
struct Reader<'a> {
    value: &'a DeValue<'a>,
    place: Range<usize>,
}

impl<'a> Reader<'a> {
    fn of(value: &'a Spanned<DeValue<'a>>) -> Self {
        Self { value: value.get_ref(), place: value.span() }
    }

    /// The value as it is told to a user who gave it where something else was expected.
    fn unexpected(&self) -> Unexpected<'_> {
        match self.value {
            DeValue::String(text) => Unexpected::Str(text),
            DeValue::Boolean(value) => Unexpected::Bool(*value),
            DeValue::Integer(number) => Unexpected::Other(number.as_str()),
            DeValue::Float(number) => Unexpected::Other(number.as_str()),
            DeValue::Datetime(_) => Unexpected::Other("date"),
            DeValue::Array(_) => Unexpected::Seq,
            DeValue::Table(_) => Unexpected::Map,
        }
    }

    fn refused<T>(&self, expected: &dyn serde::de::Expected) -> Result<T, Mistake> {
        Err(Mistake::invalid_type(self.unexpected(), expected).at(self.place.clone()))
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Mistake;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        let read = match self.value {
            DeValue::String(text) => visitor.visit_str(text),
            DeValue::Boolean(value) => visitor.visit_bool(*value),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => visitor.visit_i64(number),
                Err(_) => Err(Mistake::custom("a whole number that large cannot be read")),
            },
            DeValue::Float(number) => match number.as_str().parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => Err(Mistake::custom("this number cannot be read")),
            },
            DeValue::Array(values) => visitor.visit_seq(Values(values.iter())),
            DeValue::Table(_) => return self.deserialize_map(visitor),
            DeValue::Datetime(_) => return self.refused(&visitor),
        };
        read.map_err(|mistake| mistake.at(self.place))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        let DeValue::Table(table) = self.value else { return self.refused(&visitor) };
        visitor
            .visit_map(Entries { entries: table.iter(), value: None })
            .map_err(|mistake| mistake.at(self.place))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.deserialize_map(visitor)
    }

    /// What is there is something.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_some(self)
    }

    /// A choice: its name, or a table with its name as the only key.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        let read = match self.value {
            DeValue::String(name) => visitor.visit_enum(name.as_ref().into_deserializer()),
            DeValue::Table(table) => match (table.iter().next(), table.len()) {
                (Some((name, value)), 1) => visitor.visit_enum(Choice { name, value }),
                (_, found) => Err(Mistake::custom(format!("expected one name, found {found}"))),
            },
            _ => return self.refused(&visitor),
        };
        read.map_err(|mistake| mistake.at(self.place))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct
        seq tuple tuple_struct identifier ignored_any
    }
}

/// The values of a list.
struct Values<'a>(std::slice::Iter<'a, Spanned<DeValue<'a>>>);

impl<'de> SeqAccess<'de> for Values<'_> {
    type Error = Mistake;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Mistake> {
        self.0.next().map(|value| seed.deserialize(Reader::of(value))).transpose()
    }
}

/// The settings of a table.
struct Entries<'a> {
    entries: toml::map::Iter<'a, Spanned<toml::de::DeString<'a>>, Spanned<DeValue<'a>>>,
    value: Option<&'a Spanned<DeValue<'a>>>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Mistake;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Mistake> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some(value);
        let read = seed.deserialize(key.get_ref().as_ref().into_deserializer());
        read.map(Some).map_err(|mistake: Mistake| mistake.at(key.span()))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Mistake> {
        let value =
            self.value.take().ok_or_else(|| Mistake::custom("a value was asked for before its key"))?;
        seed.deserialize(Reader::of(value))
    }
}

/// A choice with settings of its own.
struct Choice<'a> {
    name: &'a Spanned<toml::de::DeString<'a>>,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'de, 'a> EnumAccess<'de> for Choice<'a> {
    type Error = Mistake;
    type Variant = Reader<'a>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Reader<'a>), Mistake> {
        let read = seed.deserialize(self.name.get_ref().as_ref().into_deserializer());
        let name = read.map_err(|mistake: Mistake| mistake.at(self.name.span()))?;
        Ok((name, Reader::of(self.value)))
    }
}

impl<'de> VariantAccess<'de> for Reader<'_> {
    type Error = Mistake;

    fn unit_variant(self) -> Result<(), Mistake> {
        self.refused(&"a name alone")
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Mistake> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Mistake> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        self.deserialize_map(visitor)
    }
}
