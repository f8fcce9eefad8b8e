"""Chat templates against transformers' own rendering. The templates are written here, each as a family of models has its format: the same marks, rules and constructs."""
import json
import re
import subprocess

import pytest

from support import BUILD, model_path

TEXTS = ["Hello!", "  spaces around \n", "Grüße, 世界 🌍", "quotes ' and \" and \\ back", "line\nbreaks\n\n", ""]
SYSTEM = {"role": "system", "content": " You are terse.\n"}
TURNS = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(TEXTS)]
CONVERSATIONS = [TURNS[:1], TURNS[:2], TURNS, [SYSTEM, *TURNS[:2]], [SYSTEM, *TURNS]]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}{% endif %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA_2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}
{%- else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}
{%- for message in loop_messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate: ' ~ message.role) }}{% endif %}
{%- if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
{%- else %}{% set content = message['content'] %}{% endif %}
{%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA_3 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined and not fixed_date is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The system's message comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One tool-call at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or (message.content is iterable and message.content is not string) %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" and message.get("content") %}
        {{- " " + message["content"] + eos_token }}
    {%- elif message["role"] not in ["assistant", "tool"] %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\\n\\n' %}{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for message in rest -%}
{%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif %}
{{ '<start_of_turn>' + role + '\\n' + (first if loop.first else "") }}
{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- elif message['content'] is iterable -%}
{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}
{%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}{{ '<end_of_turn>\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are helpful.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index or loop.last %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + content.rstrip('\\n') + '<|im_end|>' + '\\n' }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
        {%- endif %}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
"""

PHI_3 = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

FAMILIES = {"chatml": CHATML, "llama-2": LLAMA_2, "llama-3": LLAMA_3, "mistral": MISTRAL, "gemma": GEMMA, "qwen": QWEN, "phi-3": PHI_3}

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Says it's \"fine\" é", "return": "x", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}}, "required": ["city"], "x": [1, 2.5, True, None], "e": {}, "l": []}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}}}]}
WITH_TOOLS = [TURNS[0], CALL, {"role": "tool", "content": "12 °C"}, {"role": "tool", "content": "rain"}, {"role": "assistant", "content": "Wet.</think>\n\nWet."}, TURNS[2]]


def render(jobs):
    """[(template, variables), …] by kvcc: (text, None) or (None, error)."""
    done = subprocess.run([BUILD / "tests/bin/render"], input=json.dumps(jobs), capture_output=True, text=True, check=True)
    return [(one.get("text"), one.get("error")) for one in json.loads(done.stdout)]


def reference(template, variables):
    """transformers' rendering (without the day's date), or the exception."""
    from transformers.utils.chat_template_utils import _compile_jinja_template
    try:
        return _compile_jinja_template(template).render(**variables), None
    except Exception as error:
        return None, error


def same(jobs):
    for (template, variables), (text, error) in zip(jobs, render(jobs)):
        wanted, failure = reference(template, {**variables, "fixed_date": True})
        place = f"{template[:400]!r}\n{json.dumps(variables)[:600]}"
        if failure is not None:
            assert text is None, f"{failure!r} wanted, {text!r} found: {place}"
        else:
            assert error is None, f"{error}: {place}"
            assert text == wanted, place


@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_chat_models(family):
    jobs = []
    for messages in [*CONVERSATIONS, TURNS[1:3], WITH_TOOLS, [{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "image"}]}]]:
        for tools in (None, TOOLS):
            for prompt in (False, True):
                jobs.append((FAMILIES[family], {"messages": messages, "tools": tools, "add_generation_prompt": prompt, **TOKENS}))
    same(jobs)


def test_smollm2s_own(tmp_path):
    """The template of the model's GGUF, by transformers' renderer."""
    import gguf
    template = bytes(gguf.GGUFReader(model_path()).fields["tokenizer.chat_template"].parts[-1]).decode()
    same([(template, {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": False, **TOKENS}) for messages in CONVERSATIONS])


EXPRESSIONS = r"""1 + 2 * 3 - 4 // 3|2 ** 3 ** 1|-7 // 2|-7 % 3|7 % -3|7 / 2|1.5 + 1|10 // 2.5|1e16|0.1 + 0.2|true|none|not 1|1 == 1.0|true == 1|'a' ~ 1 ~ none ~ true
1 < 2 < 3|1 < 3 < 2|'a' < 'b'|3 in [1, 2, 3]|'b' in 'abc'|'k' in d|4 not in [1]|1 if false else 2|1 if true|'' or 'x'|0 and 1|[] or {}
[1, 'a', [none, 2.5]]|{'a': 1, "b": ['x', 'it\'s']}|(1, 2)[1]|l[1:]|l[:-1]|l[::-1]|l[::2]|l[5:1:-2]|s[1:3]|s[-1]|s[0]|l[0]|l[-1]|d.k|d['k']|d.nothing|d['nothing']|s[99]|l[99]
l | length|s | length|d | length|'hello' | upper|'aBc dEF' | title|'aBC' | capitalize|'ABC' | lower|' x ' | trim|'xxaxx' | trim('x')|l | join(', ')|[{'n': 1}, {'n': 2}] | join('-', attribute='n')
l | first|l | last|[] | first|l | list|s | list|l | reverse | list|nothing | default('d')|'' | default('d')|'' | default('d', true)|'12' | int|'x' | int|3.9 | int|3 | string|5 | abs|-5 | abs
'a-b-a' | replace('a', 'c')|[1, 2, 3, 4] | select('odd') | list|[1, 2, 3, 4] | reject('odd') | list|people | map(attribute='name') | list|people | selectattr('age', 'gt', 1) | list|people | selectattr('name', 'equalto', 'Ann') | list
people | rejectattr('name', '==', 'Ann') | map(attribute='age') | list|people | selectattr('tall') | list|['a', 'b'] | map('upper') | list|people | map(attribute='tall', default='?') | list
d | tojson|l | tojson|s | tojson|d | tojson(indent=2)|[] | tojson(indent=2)|{'a': {}} | tojson(indent=1)|d.items() | map('first') | list|d | items | map('last') | list|d.keys() | list|d.values() | list|d.get('k')|d.get('no')|d.get('no', 7)
'ab'.upper()|' ab '.strip()|' ab '.lstrip()|' ab '.rstrip()|'xaxb'.lstrip('x')|'a,b,,c'.split(',')|'a b  c '.split()|'a,b,c'.split(',', 1)|'a,b,c'.rsplit(',', 1)|'abc'.startswith('ab')|'abc'.endswith('ab')|'abcabc'.replace('b', 'X', 1)|'abc'.find('c')|'éabc'.find('c')|'abc'.find('z')|','.join(['a', 'b'])|'a b'.title()|'aB'.capitalize()
x is defined|nothing is defined|nothing is undefined|none is none|1 is number|'1' is string|l is iterable|d is mapping|s is sequence|d is sequence|3 is odd|3 is even|6 is divisibleby 3|6 is divisibleby(4)|true is true|1 is true|false is false|1.0 is float|1 is integer|true is boolean|1 is in [1, 2]|1 is eq 1|1 is not eq 2|1 is ne 2
nothing|'' ~ nothing ~ ''|nothing == none|nothing == nothing|[nothing | default(1)]|range(3) | list|range(1, 4) | list|range(5, 0, -2) | list|dict(a=1, b='c')|raise_exception is defined|"tab\there\\ \x41 é \u00e9"|'a' 'b'|1_000|[1, 2,]|'%s' | length|l + [9]|'ab' * 2
nothing + 1|none + 'a'|'a' + 1|nothing.more|'a' - 1|1 < 'a'|1 / 0|raise_exception('no')|[] | length + 'a'|'a' is divisibleby 2"""


def test_expressions():
    """Each alone, with what Python says of it; where Python refuses, so do we."""
    values = {"x": 1, "s": "héllo", "l": [3, 1, 2, "z"], "d": {"k": "v", "é": [1, {"n": None, "t": True}], "q": "a\"b\n"},
              "people": [{"name": "Ann", "age": 1}, {"name": "Bob", "age": 2, "tall": True}]}
    # At bars without blanks around them, which filters have.
    expressions = [e for line in EXPRESSIONS.splitlines() for e in re.split(r"(?<! )\|(?! )", line)]
    assert len(expressions) > 150
    same([("[{{ " + expression + " }}]", values) for expression in expressions])


STATEMENTS = [
    "a\n{% if true %}\n  b\n{% endif %}\nc\n", "  {% if true %}x{% endif %}  \n  {% if false %}y{% endif %}\nz", "a {%- if true -%}  b  {%- endif -%}  c", "{%+ if true %}\nx{% endif +%}\ny",
    "a\n  {# note #}\nb {#- note -#} c\n\n", "{{ 'a' }}\n{{ 'b' }}\n\n", "\n\n  {% set x = 1 %}  \n{{ x }}", "{% for i in [1,2] %}\n{{ i }},\n{% endfor %}\nend", "{% for i in [] %}a{% else %}none{% endfor %}",
    "{% for i in [1,2,3] %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.index0 }}{{ loop.revindex0 }} {% endfor %}",
    "{% for i in [1,2,3,4] if i is odd %}{{ loop.index }}:{{ i }}:{{ loop.length }} {% endfor %}", "{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}", "{% for c in 'héy' %}{{ c }}.{% endfor %}", "{% for k in {'x': 1} %}{{ k }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + 10 %}{{ x }} {% endfor %}{{ x }}", "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set x %}\n  text {{ 1 + 1 }}\n{% endset %}[{{ x }}]", "{% set x = {'a': 1} %}{% set x.a = 2 %}{{ x }}", "{% if x is defined and x %}a{% elif not y %}b{% else %}c{% endif %}",
    "{% macro m(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}", "{% set g = 5 %}{% macro m(a) %}{{ a + g }}{% if a > 0 %}{{ m(a - 1) }}{% endif %}{% endmacro %}{{ m(2) }}",
    "{% macro m() %}{% for i in [1] %}{{ loop.index }}{% endfor %}{% endmacro %}{% for j in [1, 2] %}{{ m() }}{{ loop.index }}{% endfor %}", "{% for i in [1,2] %}{% for j in [3,4] %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in [1,2,3] %}{{ loop.previtem | default('-') }}{{ loop.nextitem | default('-') }} {% endfor %}", "a\r\nb\r\n{% if true %}\r\nc{% endif %}\r\n", "{{ '{{' }}{{ \"}}\" }}{{ {'a': {'b': 1}} }}", "{{ 1 }}", "", "\n", "plain",
    "{% generation %}x{% endgeneration %}y", "{{ [1, 2, 3] | map('string') | join('+') }}\n", "{% for i in nothing %}x{% endfor %}y", "{{- ' a ' -}}\n\n b", "   {{ 'x' }}", "a\n   {{- 'x' }}",
    "{%- set q = 'it' -%} {{ q }} {%- if q %} z {% endif %}", "{% if a is not defined or a is none %}t{% endif %}", "{{ ('a' if false) ~ 'b' }}", "{{ 'x' if 1 > 2 else 'y' if true else 'z' }}",
]


def test_statements_and_white_space():
    same([(template, {}) for template in STATEMENTS])


@pytest.mark.parametrize("template,words", [
    ("a\n{% include 'x' %}", "line 2: the tag 'include'"), ("{% block b %}{% endblock %}", "the tag 'block'"), ("{{ x | wordwrap }}", "the filter 'wordwrap'"), ("{{ 1 is callable }}", "the test 'callable'"),
    ("{{ cycler(1) }}", "the function 'cycler'"), ("{{ 'a'.encode() }}", "the method 'encode' of a text"), ("{{ l.append(1) }}", "the method 'append' of a list"), ("{{ x.__class__ }}", ""), ("{% for a in b recursive %}{% endfor %}", "'recursive'"),
    ("{{ 'É' | lower }}", "beyond ASCII"), ("\n\n{{ 1 +", "line 3"), ("{% if x %}", "the template ends"), ("{% endif %}", "'endif'"), ("{{ 'a", "a text without end"), ("{# x", "a comment without end"),
    ("{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}", "steps"), ("{{ 'a' * 100000000 }}", "too long"), ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "nested"),
    ("{% macro m(a) %}{{ m(a) }}{% endmacro %}{{ m(1) }}", "too deep"), ("{{ loop.cycle('a') }}", ""), ("{{ " + "not " * 5000 + "1 }}", "nested"), ("{{ 1" + " + 1" * 5000 + " }}", "in a row"),
    ("{{ 9223372036854775807 + 1 }}", "beyond 64 bits"), ("{{ d | tojson(sort_keys=true) }}", "sort_keys"), ("{% raw %}{{ x }}{% endraw %}", "the tag 'raw'"), ("{{ strftime_now('%Y') }}", "the function 'strftime_now'")])
def test_what_is_not_there_is_refused_by_name(template, words):
    (text, error), = render([(template, {"x": "a", "l": [1], "d": {}, "b": []})])
    assert text is None and words in error and "template line" in error, (text, error)
