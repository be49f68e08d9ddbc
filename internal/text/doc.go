// Package text has values and messages as people and files write them.
package text
