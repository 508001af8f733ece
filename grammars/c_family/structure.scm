; What C and C++ have in common.

; Definitions
(function_definition
  declarator: [
    (function_declarator declarator: (identifier) @definition.name)
    (pointer_declarator declarator: (function_declarator declarator: (identifier) @definition.name))
    (pointer_declarator
      declarator: (pointer_declarator
        declarator: (function_declarator declarator: (identifier) @definition.name)))
  ]
  body: (_) @body) @definition.function @signature
(declaration
  declarator: [
    (function_declarator declarator: (identifier) @definition.name)
    (pointer_declarator declarator: (function_declarator declarator: (identifier) @definition.name))
  ]) @definition.function @signature
(enum_specifier name: (_) @definition.name body: (_)) @definition
(type_definition declarator: (type_identifier) @definition.name) @definition
(translation_unit
  (declaration
    declarator: (init_declarator
      declarator: [
        (identifier) @definition.name
        (array_declarator declarator: (identifier) @definition.name)
        (pointer_declarator declarator: (identifier) @definition.name)
      ]
      value: (_) @body))
    @definition)
(translation_unit (declaration declarator: (identifier) @definition.name) @definition)
(preproc_def name: (_) @definition.name) @definition
(preproc_function_def name: (_) @definition.name) @definition
(field_declaration) @definition
(enumerator name: (_) @definition.name) @definition

(preproc_include) @import

; What decides
(if_statement condition: (_) @condition)
(while_statement condition: (_) @condition)
(do_statement condition: (_) @condition)
(for_statement body: (_) @body) @condition
(switch_statement body: (_) @body) @condition
(case_statement value: (_) @condition)
(conditional_expression condition: (_) @condition)
(preproc_if condition: (_) @condition)
(preproc_elif condition: (_) @condition)
(preproc_ifdef name: (_) @condition)

; What comes out
(return_statement) @return
(break_statement) @return
(continue_statement) @return
(goto_statement) @return

(init_declarator) @assignment
(assignment_expression) @assignment
(update_expression) @assignment
(initializer_pair) @assignment

; Calls: the name, not the whole of a chain
(call_expression function: (identifier) @call @call.name)
(call_expression function: (field_expression field: (_) @call @call.name))

; Tests and what they assert
((function_definition
  declarator: (function_declarator declarator: (identifier) @_name)
  body: (_) @body) @test
  (#match? @_name "^(TEST|test_)"))
((call_expression function: (identifier) @_name) @test
  (#match? @_name "^(assert|ASSERT|EXPECT|TEST|CHECK|REQUIRE|ck_assert)"))

(type_identifier) @type

[
  (string_literal)
  (char_literal)
  (number_literal)
  (true)
  (false)
  (null)
] @literal

(comment) @comment
((comment) @docstring (#match? @docstring "^/(\\*\\*|\\*!|//|/!)"))
