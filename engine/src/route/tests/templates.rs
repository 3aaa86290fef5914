//! Templates: how they are written, and rendered for a row.

use proptest::prelude::*;

use super::*;

/// Renders a template of the columns `a`, `b` and `c` for one row.
fn render(template: &str, row: [Cell; 3]) -> Result<String, RenderError> {
    let bound = Template::parse(template).unwrap().bind(|name| {
        let mut columns = ["a", "b", "c"].iter();
        columns.position(|column| *column == name).map(Bound::Column)
    });
    with_row(row.to_vec(), |row| {
        let mut out = "what was there before".to_owned();
        bound.unwrap().render(row, &mut out).map(|()| out)
    })
}

#[test]
fn a_template_is_rendered_with_the_columns_of_the_row() {
    let row = || [text("order"), text(""), text("ü.{b}")];
    for (template, rendered) in [
        ("{a}.{c}", "order.ü.{b}"),
        ("{c}{a}{a}", "ü.{b}orderorder"),
        ("shop.{b}.x", "shop..x"),
        ("{{{a}}}", "{order}"),
        ("constant", "constant"),
        ("", ""),
    ] {
        assert_eq!(render(template, row()).as_deref(), Ok(rendered), "{template}");
    }
}

#[test]
fn a_value_inside_json_is_rendered_as_it_is_written() {
    let row = || {
        let json =
            r#"{"country": "D\u0045", "total": 10.50, "vip": true, "none": null, "list": [{"sku": "A.1"}]}"#;
        [text(json), text("no json"), Cell::Null]
    };
    for (template, rendered) in [
        ("{a.country}.{a.vip}.{a.total}", "DE.true.10.50"),
        ("{a.country|lower}.{a.list.0.sku|kebab}", "de.a.1"),
        ("{a.none|default:}", ""),
        ("{a.town|upper|default:Un known|lower|snake_case}", "un_known"),
        ("{c.country|default:none}.{c|default:x}", "none.x"),
        ("{a.list.1|default:}", ""),
    ] {
        assert_eq!(render(template, row()).as_deref(), Ok(rendered), "{template}");
    }
    for (template, reference, fault) in [
        ("{a.none}", "a.none", ValueFault::Missing),
        ("{a.town|lower}", "a.town", ValueFault::Missing),
        ("{c.town}", "c.town", ValueFault::Missing),
        ("{a.list|default:x}", "a.list", ValueFault::Nested),
        ("{b.town|default:x}", "b.town", ValueFault::NotJson),
    ] {
        let reference = reference.to_owned();
        assert_eq!(
            render(template, row()),
            Err(RenderError { reference, fault }),
            "{template}"
        );
    }
}

#[test]
fn filters_change_one_value_and_no_other() {
    let row = || [text("ShopOrder"), text("Größe"), text("x_Y z")];
    for (template, rendered) in [
        ("{a|snake_case}.{a}", "shop_order.ShopOrder"),
        (
            "{a|snake}{a|kebab_case}{a|kebab}",
            "shop_ordershop-ordershop-order",
        ),
        ("{b|upper}.{b|lower}", "GRÖSSE.größe"),
        ("{a|lower|snake_case}", "shoporder"),
        ("{c|kebab_case|upper}", "X-Y-Z"),
        ("{c|default:other}", "x_Y z"),
    ] {
        assert_eq!(render(template, row()).as_deref(), Ok(rendered), "{template}");
    }
}

#[test]
fn a_column_without_a_usable_value_is_named() {
    let row = |cell| [text("order"), Cell::Null, cell];
    let error = |reference: &str, fault| {
        let reference = reference.to_owned();
        Err(RenderError { reference, fault })
    };
    assert_eq!(render("{a}.{b}", row(text("x"))), error("b", ValueFault::Missing));
    assert_eq!(render("{a}.{c}", row(text("x"))).as_deref(), Ok("order.x"));
    assert_eq!(
        render("{c}", row(Cell::Unchanged)),
        error("c", ValueFault::Missing)
    );
    let not_utf8 = || Cell::Text(vec![0xFF]);
    assert_eq!(
        render("{c|lower}", row(not_utf8())),
        error("c", ValueFault::NotUtf8)
    );
    assert_eq!(
        render("{c.x|default:y}", row(not_utf8())),
        error("c.x", ValueFault::NotUtf8)
    );
}

#[test]
fn a_template_is_literals_and_columns() {
    let template = Template::parse("shop.{aggregate_type}.{payload.x.0|lower}").unwrap();
    assert_eq!(
        template.columns().collect::<Vec<_>>(),
        ["aggregate_type", "payload"]
    );
    let references: Vec<_> = template.references().map(ToString::to_string).collect();
    assert_eq!(references, ["aggregate_type", "payload.x.0"]);
    assert_eq!(template.as_constant(), None);
    assert_eq!(Template::parse("").unwrap().as_constant(), Some(""));
    assert_eq!(
        Template::parse("{{outbox}}").unwrap().as_constant(),
        Some("{outbox}")
    );
    assert_eq!(Template::constant("{x}").as_constant(), Some("{x}"));
}

#[test]
fn a_fault_is_named_with_its_place() {
    for (text, position, length, fault) in [
        ("a{b", 2, 1, "`{` without its `}`"),
        ("ab}", 3, 1, "`}` without its `{` (write `}}` for a brace)"),
        ("{}", 1, 1, "a column's name is missing"),
        ("ü{|lower}", 2, 1, "a column's name is missing"),
        ("ü{a b}", 4, 1, "a column's name has letters, digits and `_` only"),
        ("{a{b}", 3, 1, "a column's name has letters, digits and `_` only"),
        ("{payload..x}", 9, 1, "a name is missing after the dot"),
        ("{payload.}", 9, 1, "a name is missing after the dot"),
        (
            "{payload.a b}",
            11,
            1,
            "a name in a path has no space, quote, brace or bracket",
        ),
        ("{a|}", 3, 1, "a filter's name is missing after the `|`"),
        (
            "{a|lower|snak}",
            10,
            4,
            "there is no such filter: there are default:TEXT, kebab_case, lower, snake_case and upper",
        ),
        (
            "{a|default}",
            4,
            7,
            "the filter needs a text, as in `default:none`",
        ),
        ("{a|default:x{y}", 13, 1, "`{` without its `}`"),
        ("{a|lower:x}", 9, 2, "the filter takes no text"),
        (
            "{event_type | lower}",
            12,
            1,
            "no spaces around `|`, as in `{event_type|lower}`",
        ),
        (
            "{a| lower}",
            4,
            1,
            "no spaces around `|`, as in `{event_type|lower}`",
        ),
        (
            "{a|lower |upper}",
            9,
            1,
            "no spaces around `|`, as in `{event_type|lower}`",
        ),
        (
            "{payload.x |lower}",
            11,
            1,
            "no spaces around `|`, as in `{event_type|lower}`",
        ),
    ] {
        let error = Template::parse(text).unwrap_err();
        let place = (error.position, error.length);
        assert_eq!(
            (error.fault().as_str(), place),
            (fault, (position, length)),
            "{text}"
        );
    }
    let deep = format!("{{payload{}}}", ".x".repeat(17));
    assert_eq!(
        Template::parse(&deep).unwrap_err().to_string(),
        "a path has 16 names at most at character 42 of the template"
    );
}

#[test]
fn an_unknown_column_is_named() {
    let template = Template::parse("{event_type}.{colour.x|lower}").unwrap();
    let index_of = |name: &str| (name == "event_type").then_some(Bound::Column(3));
    assert_eq!(template.bind(index_of), Err("colour".to_owned()));
}

proptest! {
    #![proptest_config(crate::property::config())]

    #[test]
    fn any_text_is_parsed_or_refused_with_a_place_inside(text in "[a-z{}_.|: ü]{0,20}|\\PC{0,20}|(\\{[ab](\\.[x0]){0,3}(\\|(lower|snake|default:z|x)){0,2}\\}){0,3}") {
        match Template::parse(&text) {
            Ok(template) => {
                prop_assert_eq!(template.as_constant().is_some(), template.columns().count() == 0);
            }
            Err(error) => {
                let length = text.chars().count();
                prop_assert!(error.position >= 1 && error.length >= 1);
                prop_assert!(error.position + error.length <= length + 1, "{:?} in {:?}", error, text);
            }
        }
    }

    #[test]
    fn a_reference_is_printed_as_it_is_written(text in "[a-z_]{1,5}(\\.[a-z0-9_-]{1,5}){0,4}") {
        let reference = Reference::parse(&text).unwrap();
        prop_assert_eq!(reference.to_string(), text.clone());
        let template = Template::parse(&format!("{{{text}}}")).unwrap();
        prop_assert_eq!(template.references().next(), Some(&reference));
    }
}
