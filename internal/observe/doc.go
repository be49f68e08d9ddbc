// Package observe has the state and the metrics of a running mount.
package observe
