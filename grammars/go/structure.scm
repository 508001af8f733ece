; Definitions
(function_declaration name: (_) @definition.name body: (_) @body) @definition.function @signature
(method_declaration
  receiver: (parameter_list
    (parameter_declaration
      type: [
        (type_identifier) @definition.owner
        (generic_type type: (_) @definition.owner)
        (pointer_type (type_identifier) @definition.owner)
        (pointer_type (generic_type type: (_) @definition.owner))
      ]))
  name: (_) @definition.name
  body: (_) @body) @definition.function @signature
(method_elem name: (_) @definition.name) @definition.function @signature
(type_spec name: (_) @definition.name) @definition
(type_alias name: (_) @definition.name) @definition
(const_spec name: (identifier) @definition.name value: (_)? @body) @definition
(source_file (var_declaration (var_spec name: (_) @definition.name value: (_)? @body) @definition))
(source_file
  (var_declaration
    (var_spec_list (var_spec name: (_) @definition.name value: (_)? @body) @definition)))
(field_declaration) @definition

(package_clause) @import
(import_declaration) @import

; What decides
(if_statement consequence: (_) @body) @condition
(for_statement body: (_) @body) @condition
(expression_switch_statement value: (_) @condition)
(type_switch_statement value: (_) @condition)
(expression_case value: (_) @condition)
(type_case type: (_) @condition)
(communication_case communication: (_) @condition)

; What comes out
(return_statement) @return
(break_statement) @return
(continue_statement) @return
(goto_statement) @return
(send_statement) @return
((call_expression function: (identifier) @_name) @return
  (#eq? @_name "panic"))

(assignment_statement) @assignment
(short_var_declaration) @assignment
(var_spec value: (_)) @assignment
(inc_statement) @assignment
(dec_statement) @assignment
(keyed_element) @assignment

; Calls: the name, not the whole of a chain
(call_expression function: (identifier) @call @call.name)
(call_expression function: (selector_expression field: (_) @call @call.name))
(call_expression
  function: (selector_expression operand: (identifier) @call.owner field: (_) @call @call.name))

; Tests and what they assert
((function_declaration name: (_) @_name body: (_) @body) @test
  (#match? @_name "^(Test|Benchmark|Example|Fuzz)"))
((call_expression function: (selector_expression
    operand: (identifier) @_object
    field: (_) @_name)) @test
  (#match? @_object "^(t|b|assert|require)$")
  (#match? @_name "^(Error|Fatal|Run|Equal|Nil|NoError|True|False|Contains|Len|Skip)"))

(type_identifier) @type

[
  (interpreted_string_literal)
  (raw_string_literal)
  (rune_literal)
  (int_literal)
  (float_literal)
  (true)
  (false)
  (nil)
] @literal

(comment) @comment
(source_file
  (comment)+ @docstring
  .
  [
    (function_declaration)
    (method_declaration)
    (type_declaration)
    (const_declaration)
    (var_declaration)
    (package_clause)
  ])
