// Package sys offers what Linux has beyond Go's library.
package sys
