// Package commands has the work of one command in each of its packages; only cmd/hbmfs imports them.
package commands
