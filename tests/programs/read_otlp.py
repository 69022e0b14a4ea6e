"""Prints what a request of OTLP profiles says, as JSON; fails where it breaks a rule of the protocol.

The rules: comments of opentelemetry/proto/profiles/v1development/profiles.proto, and what `profcheck` of
open-telemetry/sig-profiling checks of them.

usage: read_otlp.py FILE
"""

import json
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest

TABLES = {
    "mapping_table": ["mapping_index"],
    "location_table": ["location_indices"],
    "function_table": ["function_index"],
    "link_table": ["link_index"],
    "string_table": [],
    "attribute_table": ["attribute_indices"],
    "stack_table": ["stack_index"],
}
TABLE_OF = {field: table for table, fields in TABLES.items() for field in fields}


def references(message, used):
    """Collects to which entries of which table a message and all below it refer."""
    assert not len(UnknownFieldSet(message)), f"{message.DESCRIPTOR.name}: fields of another version"
    for field, value in message.ListFields():
        table = "string_table" if field.name.endswith("_strindex") else TABLE_OF.get(field.name)
        values = value if field.is_repeated else [value]
        for one in values:
            if table:
                used[table].add(one)
            elif field.message_type:
                references(one, used)


def check(request):
    dictionary = request.dictionary
    used = {table: {0} for table in TABLES}
    references(request, used)
    for table, numbers in used.items():
        entries = list(getattr(dictionary, table))
        assert entries, f"{table}: no entry"
        empty = "" if table == "string_table" else type(entries[0])()
        assert entries[0] == empty, f"{table}: the first entry is not empty"
        assert numbers == set(range(len(entries))), f"{table}: {numbers ^ set(range(len(entries)))} is missing or not used"
        plain = [entry if isinstance(entry, str) else entry.SerializeToString(deterministic=True) for entry in entries]
        assert len(set(plain)) == len(plain), f"{table}: an entry is there twice"


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def main():
    request = ExportProfilesServiceRequest.FromString(open(sys.argv[1], "rb").read())
    check(request)
    dictionary = request.dictionary
    texts = dictionary.string_table

    def attributes(numbers):
        chosen = [dictionary.attribute_table[number] for number in numbers]
        named = {texts[each.key_strindex]: value(each.value) for each in chosen}
        assert len(named) == len(chosen), "a key is there twice"
        return named

    def frame(number):
        location = dictionary.location_table[number]
        [line] = location.lines
        function = dictionary.function_table[line.function_index]
        kind = attributes(location.attribute_indices).get("profile.frame.type")
        return [texts[function.name_strindex], texts[function.filename_strindex], line.line, kind]

    resources = []
    for resource in request.resource_profiles:
        [scope] = resource.scope_profiles
        [profile] = scope.profiles
        samples = []
        keys = set()
        for sample in profile.samples:
            [ns] = sample.values
            assert ns > 0 and not sample.timestamps_unix_nano
            keys.add((sample.stack_index, tuple(sorted(sample.attribute_indices))))
            stack = dictionary.stack_table[sample.stack_index]
            frames = [frame(number) for number in stack.location_indices]
            samples.append({"ns": ns, "labels": attributes(sample.attribute_indices), "frames": frames})
        assert len(keys) == len(samples), "two samples are the same"
        kind = profile.sample_type
        resources.append(
            {
                "resource": {each.key: value(each.value) for each in resource.resource.attributes},
                "scope": [scope.scope.name, scope.scope.version],
                "type": [texts[kind.type_strindex], texts[kind.unit_strindex]],
                "start_ns": profile.time_unix_nano,
                "length_ns": profile.duration_nano,
                "period_ns": profile.period,
                "samples": samples,
            }
        )
    print(json.dumps(resources))


if __name__ == "__main__":
    main()
