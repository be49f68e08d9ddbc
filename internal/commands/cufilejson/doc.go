// Package cufilejson checks, corrects and writes cufile.json, the configuration of NVIDIA's libcufile.
//
// libcufile stops at the first value that it does not like, names at most the key, and ignores keys that it does not
// know. So one misspelt or misplaced key leaves a default in force without a word, and a number in quotes keeps every
// program from starting. Lint finds all of it at once, with line and column:
//
//	r := cufilejson.Lint(text, cufilejson.Options{})
//	for _, f := range r.Findings { fmt.Println(f) }
//	text = r.Fixed // what can be corrected is, comments stay
//
// Write makes a file for a machine and a workload, each value with its reason.
//
// Lint looks at the text and at Options, never at the machine. It does not judge whether a directory or device exists
// that the file names; libcufile does so at its start.
//
// The keys are those in the libraries libcufile.so 1.15.1 and 1.19.1. libcufile 1.13.1, 1.15.1 and 1.19.1 enforced
// these types, ranges and dialect when they loaded such files; TestLibcufileAgrees does that again. The dialect is JSON
// with comments, but without trailing commas; of two equal keys the last counts. Units and defaults are those of
// NVIDIA's GPUDirect Storage configuration guide of November 2026.
package cufilejson
