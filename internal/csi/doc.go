// Package csi serves volumes to the pods of Kubernetes.
package csi
